"""The page: its files, what it is told before anybody is known, and its keys."""
