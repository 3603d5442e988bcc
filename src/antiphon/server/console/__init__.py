"""The page: its files, what it shows before anybody has signed in, and its keys."""
