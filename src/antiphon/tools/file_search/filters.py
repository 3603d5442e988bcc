"""Filters of searches: which files may be found."""

from antiphon.tools.file_search.base import Attributes
from antiphon.wire.responses.tools import Filter


def check_filter(filter: Filter, path: str) -> None:
    """
    Make sure that a filter can be applied.

    Args:
        path: of the filter in the request, such as `tools[0].filters`.

    Raises:
        ClientError: it is wrong, or too large.
    """
    raise NotImplementedError


def allows(filter: Filter | None, file_id: str, filename: str, attributes: Attributes) -> bool:
    """Whether a file may be found."""
    raise NotImplementedError
