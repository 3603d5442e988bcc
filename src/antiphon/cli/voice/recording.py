"""`--record` of `talk` and `duplex`: asking the server to record a session, and saying where the recording is."""

import contextlib
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.server import ensure_server, find_server
from antiphon.cli.common.shell import Shell
from antiphon.cli.common.weights import with_speech
from antiphon.errors import UpstreamError

RECORD_HEADERS = {"antiphon-record": "yes"}
"""A client's consent, where the server's `recording.when` asks for it."""

_LIST_TIMEOUT_S = 2.0
"""A recording is listed soon after its session starts: the server writes five times a second."""

_POLL_INTERVAL_S = 0.1

OnSessionId = Callable[[str], None]


@contextlib.contextmanager
def open_voice_server(shell: Shell, url: str | None, file: Path | None, *, record: bool) -> Iterator[tuple[ApiClient, OnSessionId | None]]:
    """
    The server to talk to, and, for a session to be recorded, what gets its id.

    Args:
        url: the value of `--url`.
        file: the value of `--config`.
        record: needs a running server: one started for this conversation forgets its recordings.
    """
    if not record:
        with ensure_server(shell, url, file, with_speech) as client:
            yield client, None
        return
    client = find_server(shell, url, file)
    with report_recording(client, shell, url) as on_session_id:
        yield client, on_session_id


@contextlib.contextmanager
def report_recording(client: ApiClient, shell: Shell, url: str | None) -> Iterator[OnSessionId]:
    """
    Say at the end, also after an error, where the session's recording is, or that there is none.

    Args:
        url: the value of `--url`.

    Yields:
        A function that gets the session's id when it starts.
    """
    session_ids: list[str] = []
    try:
        yield session_ids.append
    finally:
        for session_id in session_ids:
            if _is_listed(client, session_id):
                shell.note(f"recorded; `{shell.name} sessions show {session_id}{f' --url {url}' if url else ''}` shows it")
            else:
                shell.note("not recorded: the server's `recording.when`, or the rule of your key, does not allow it")


def _is_listed(client: ApiClient, session_id: str) -> bool:
    """Whether the recording exists; also true where that can't be found out, without the permission or the server."""
    deadline_s = time.monotonic() + _LIST_TIMEOUT_S
    while True:
        try:
            client.get(f"/v1/sessions/{session_id}")
        except UpstreamError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                return True
        else:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_INTERVAL_S)
