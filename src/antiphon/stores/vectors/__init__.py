"""Vector stores in memory and in SQL databases."""
