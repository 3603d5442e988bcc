"""The wish of `talk` and `duplex` that their session be recorded, and where it is then."""

import contextlib
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.shell import Shell
from antiphon.errors import UpstreamError

RECORD_HEADERS = {"antiphon-record": "yes"}
"""By which a client asks, where the server leaves it to clients."""

_LIST_TIMEOUT_S = 2.0
"""How long a session may take to be listed once it has begun: it is written down five times a second."""

_POLL_INTERVAL_S = 0.1


@contextlib.contextmanager
def report_recording(client: ApiClient, shell: Shell, url: str | None) -> Iterator[Callable[[str], None]]:
    """
    Say at the end, however it comes, where the session's recording is, or that there is none.

    Args:
        url: as `--url` names the server.

    Yields:
        What takes the session's id once it has begun.
    """
    begun: list[str] = []
    try:
        yield begun.append
    finally:
        for session_id in begun:
            if _is_listed(client, session_id):
                shell.note(f"recorded; `{shell.name} sessions show {session_id}{f' --url {url}' if url else ''}` shows it")
            else:
                shell.note("not recorded; the server's `recording.when`, or the key's own rule, says whom it records")


def _is_listed(client: ApiClient, session_id: str) -> bool:
    """Whether there is such a recording, or it can't be known, as the key may not look or nobody answers any more."""
    deadline_s = time.monotonic() + _LIST_TIMEOUT_S
    while True:
        try:
            client.get(f"/v1/sessions/{session_id}")
        except UpstreamError as trouble:
            if trouble.status != HTTPStatus.NOT_FOUND:
                return True
        else:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_INTERVAL_S)
