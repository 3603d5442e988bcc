"""What all lists of a store share."""

from typing import Literal

SortOrder = Literal["asc", "desc"]

UNFINISHED_STATUSES = ("in_progress", "queued")
"""The statuses of a response that a server works on, or is about to."""


class UnknownCursor(LookupError):
    """`after` names no item of the list."""
