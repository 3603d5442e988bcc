"""A server of one's own, for as long as a verb needs it."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.config import Config


@contextlib.contextmanager
def server(config: "Config") -> Iterator[str]:
    """The models of `config`, served by this process on a free port; yields the base address, and forgets everything at the end."""
    from antiphon.server import run  # noqa: PLC0415 - the server takes a second to load; verbs that find one running don't need it

    quiet = config.logging.model_copy(update={"level": "warning"})
    with run.background(config.model_copy(update={"logging": quiet})) as base_url:
        yield base_url
