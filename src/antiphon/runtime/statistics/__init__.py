"""What was served, in numbers: for how long each key used what, and the health of each model."""
