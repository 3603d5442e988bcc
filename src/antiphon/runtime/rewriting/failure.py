"""Why a text could not be rewritten."""


class RewriteFailed(Exception):
    """A rewrite failed, so that the text stays as it was; the message says why, for the operator's log."""
