"""The processes of `antiphon serve`: one, or several under a supervisor."""
