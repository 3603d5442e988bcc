"""Turn detection: when someone speaks, and when a turn is over."""
