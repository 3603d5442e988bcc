"""What the routes of all live protocols share."""
