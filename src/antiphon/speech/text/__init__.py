"""Text on its way to a voice: clauses, and numbers, dates and markup turned into words."""
