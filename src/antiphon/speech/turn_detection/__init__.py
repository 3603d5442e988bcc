"""When somebody speaks, and when they are done."""
