"""Vector stores: what clients do with them, files indexed in the background, and searches."""
