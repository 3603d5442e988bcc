"""The processes of `serve`: one, or several under a supervisor."""
