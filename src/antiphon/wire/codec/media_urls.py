"""The URLs by which images and documents are given."""

from antiphon.errors import invalid_url

MEDIA_URL_BEGINNINGS = ("https://", "http://", "data:")
"""How such a URL may begin, in any case of letters."""


def is_media_url(url: str) -> bool:
    """Whether a URL is one by which media can be given."""
    return url[:8].lower().startswith(MEDIA_URL_BEGINNINGS)


def check_media_url(url: str, path: str) -> None:
    """
    Check that media can be given by a URL; `path` is that of its field.

    Raises:
        ClientError: it begins otherwise.
    """
    # A path would be opened by some model servers as a file of theirs, and all others fail at it.
    if not is_media_url(url):
        raise invalid_url(path, *MEDIA_URL_BEGINNINGS)
