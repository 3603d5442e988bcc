"""Responses of the routes for recorded sessions."""

from typing import Literal

from msgspec import UNSET

from antiphon.wire.codec.types import Opt, Wire


class SessionFile(Wire, kw_only=True):
    """One file of a recording."""

    name: str
    bytes: int


class RecordedSession(Wire, kw_only=True):
    """
    A session that is or was recorded; times are Unix seconds.

    Attributes:
        status: `live`, `kept` after its end, or `interrupted` if the server died first.
        bytes: of all its files.
        truncated: why the recording ends before the session; null if it is complete.
        files: absent in a list, and while the session is live.
    """

    id: str
    object: Literal["session"] = "session"
    protocol: str
    mode: str
    model: str
    status: Literal["live", "kept", "interrupted"]
    created_at: int
    ended_at: int | None
    duration_ms: int
    reason: str | None
    bytes: int
    truncated: str | None
    tenant: str
    key_id: str | None
    files: Opt[list[SessionFile]] = UNSET


class RecordedSessionList(Wire, kw_only=True):
    """A page of recorded sessions."""

    object: Literal["list"] = "list"
    data: list[RecordedSession]
    first_id: str | None
    last_id: str | None
    has_more: bool


class SessionDeleted(Wire, kw_only=True):
    """A deleted recording."""

    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: bool = True
