"""What antiphon's own processes say to each other."""
