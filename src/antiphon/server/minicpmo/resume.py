"""
What a client that lost its network comes back to: the frames that it may have missed, and the sessions that wait for theirs.

A session is found by a token that only its client was told, and only by whoever it belongs to. Frames are numbered from 1; of those that
were sent while a client was there some are kept, too, as what is on its way is lost with a connection.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

from antiphon.errors import ClientError

SENT_LIMIT_BYTES = 3 << 19
"""What is kept of what was sent while the client was there: more than is on its way, or waits for a client that is behind."""

MISSED_LIMIT_BYTES = 4 << 20
"""What is kept while it is away; with more than that, it has missed too much."""


class ResendBuffer:
    """
    The last frames of a session, numbered in the order in which they were sent.

    Attributes:
        last: the number of the last one.
    """

    def __init__(self) -> None:
        self.last_seq = 0
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._disconnect_seq = 0

    def append(self, frame: bytes) -> bytes:
        """The frame, a JSON object, with the next number as its `seq`."""
        self.last_seq += 1
        numbered = b'%b,"seq":%d}' % (frame[:-1], self.last_seq)
        self._frames.append(numbered)
        self._size_bytes += len(numbered)
        return numbered

    def mark_disconnected(self) -> None:
        """The connection is lost; without other word from the client, it has seen what was sent so far."""
        self._disconnect_seq = self.last_seq

    def trim(self, limit_bytes: int) -> bool:
        """Let go of the oldest frames beyond that; whether one was that the client has not been sent."""
        while self._size_bytes > limit_bytes:
            self._size_bytes -= len(self._frames.popleft())
        return self.last_seq - len(self._frames) > self._disconnect_seq

    def frames_after(self, seq: int | None) -> list[bytes] | None:
        """
        The frames behind that one, or without a number, those since the connection was lost; None where not all of them are here.
        """
        missed = self.last_seq - (self._disconnect_seq if seq is None else seq)
        if not 0 <= missed <= len(self._frames):
            return None
        return list(self._frames)[len(self._frames) - missed :]


class HasTenant(Protocol):
    """What belongs to someone."""

    tenant: str


T = TypeVar("T", bound=HasTenant)


class ResumableSessions(Generic[T]):
    """Sessions, or whatever stands for them, by their tokens."""

    def __init__(self) -> None:
        self._sessions: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, token: str, session: T) -> None:
        """A session may be come back to from now on."""
        self._sessions[token] = session

    def remove(self, token: str) -> None:
        """It may not any more."""
        self._sessions.pop(token, None)

    def find(self, token: str, tenant: str) -> T:
        """
        The session of that token.

        Raises:
            ClientError: there is none, or it is another tenant's, which is the same to whoever asks.
        """
        session = self._sessions.get(token)
        if session is None or session.tenant != tenant:
            raise session_not_found()
        return session


def session_not_found() -> ClientError:
    """There is nothing to come back to."""
    return ClientError(
        "There is no such session, or it has waited too long, or what was missed of it is too much.",
        code="session_not_found",
        param="resume",
        status=404,
    )
