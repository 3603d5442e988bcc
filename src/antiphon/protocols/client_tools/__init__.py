"""Tools that the client runs, and the search for tools, as any model can be given them: as functions."""
