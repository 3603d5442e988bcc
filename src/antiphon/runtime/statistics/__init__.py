"""What was served, in numbers: for how long each key used what, and how each model does."""
