"""Text on its way to a voice: cut into clauses, markup removed, English numbers and dates in words."""
