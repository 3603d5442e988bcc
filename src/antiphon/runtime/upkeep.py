"""Work that a server does again and again: a round that fails must not be its last."""

import contextlib
from collections.abc import Iterator

import structlog

from antiphon.errors import ApiError


@contextlib.contextmanager
def one_round(work: str) -> Iterator[None]:
    """
    One round of work that is to go on, whatever fails in it: nobody waits for its task, and would hear of its end.

    The store logs an outage itself, once; anything else is logged here.

    Args:
        work: what it is, for the log.
    """
    try:
        yield
    except ApiError:
        pass
    except Exception:
        structlog.get_logger().exception("defect", work=work)
