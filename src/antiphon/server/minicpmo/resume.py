"""
Resuming: the frames that a client may have missed, and the sessions that can be resumed.

A session is found by its secret token, and only by its own tenant. Frames are numbered from 1. Some that were sent
while the client was connected are kept too, because frames in transit are lost with the connection.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

from antiphon.errors import ClientError

SENT_LIMIT_BYTES = 3 << 19
"""Kept of what was sent to a connected client: more than can be in transit or in the write buffer."""

MISSED_LIMIT_BYTES = 4 << 20
"""Kept while the client is away; if it misses more, it can't resume."""


class ResendBuffer:
    """
    The last frames of a session, numbered in the order in which they were sent.

    Attributes:
        last_seq: number of the latest frame.
    """

    def __init__(self) -> None:
        self.last_seq = 0
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._disconnect_seq = 0

    def append(self, frame: bytes) -> bytes:
        """The frame, a JSON object, with its number added as `seq`."""
        self.last_seq += 1
        numbered_frame = b"".join((memoryview(frame)[:-1], b',"seq":%d}' % self.last_seq))  # one copy of it, not two
        self._frames.append(numbered_frame)
        self._size_bytes += len(numbered_frame)
        return numbered_frame

    def mark_disconnected(self) -> None:
        """The connection is lost. A client that comes back without a number is taken to have everything up to here."""
        self._disconnect_seq = self.last_seq

    def trim(self, limit_bytes: int) -> bool:
        """Drop the oldest frames beyond the limit; returns whether one of them was never sent."""
        while self._size_bytes > limit_bytes:
            self._size_bytes -= len(self._frames.popleft())
        return self.last_seq - len(self._frames) > self._disconnect_seq

    def frames_after(self, seq: int | None) -> list[bytes] | None:
        """
        The frames after `seq`, or, without one, those since the connection was lost; None where some of them were
        dropped.
        """
        # A number that never was, or whose successors were dropped, is outside of these bounds.
        missed_count = self.last_seq - (self._disconnect_seq if seq is None else seq)
        if not 0 <= missed_count <= len(self._frames):
            return None
        return list(self._frames)[len(self._frames) - missed_count :]


class HasTenant(Protocol):
    """Something that belongs to a tenant."""

    tenant: str


T = TypeVar("T", bound=HasTenant)


class ResumableSessions(Generic[T]):
    """Sessions of this process that can be resumed, by their secret token."""

    def __init__(self) -> None:
        self._sessions: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, token: str, session: T) -> None:
        self._sessions[token] = session

    def remove(self, token: str) -> None:
        self._sessions.pop(token, None)

    def find(self, token: str, tenant: str) -> T:
        """
        The session with that token.

        Raises:
            ClientError: there is none, or it is another tenant's; the caller can't tell which.
        """
        session = self._sessions.get(token)
        if session is None or session.tenant != tenant:
            raise session_not_found()
        return session


def session_not_found() -> ClientError:
    """The error for a token with which no session can be resumed, for whatever reason."""
    return ClientError(
        "There is no such session, or it waited too long for its client, or the client missed too much of it.",
        code="session_not_found",
        param="resume",
        status=404,
    )
