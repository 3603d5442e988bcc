"""The recordings of ended sessions: listing, reading, deleting and expiring them."""

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec import structs

from antiphon.config.settings import RecordingSettings
from antiphon.errors import ClientError, shorten, unknown_cursor
from antiphon.records import SessionRecord
from antiphon.runtime.recording.files import EVENTS
from antiphon.stores.base import SessionPage, SessionStore, SortOrder, UnknownCursor
from antiphon.stores.blobs import Blob, BlobStore

DAY_S, GB = 86_400, 10**9

LIVE_TIMEOUT_S = 2 * DAY_S
"""The age from which a `live` session counts as lost: its server died, and its spool is gone."""

_BATCH_SIZE = 100

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
"""What an id may look like: it becomes part of a path."""


class RecordingLibrary:
    """
    The recordings of a server.

    Args:
        settings: how long recordings are kept, and how many.
        clock: Unix seconds.

    Attributes:
        live_records: of this process's sessions whose record is not stored yet, by their ids.
    """

    def __init__(
        self, sessions: SessionStore, blobs: BlobStore, settings: RecordingSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self.live_records: Mapping[str, SessionRecord] = {}
        self._sessions = sessions
        self._blobs = blobs
        self._settings = settings
        self._clock = clock

    async def page(self, tenant: str | None, *, after: str | None, limit: int, order: SortOrder) -> SessionPage:
        """
        A page of a tenant's sessions, or of all sessions.

        Raises:
            ClientError: `after` is not one of them.
        """
        try:
            return await self._sessions.page(tenant, after=after, limit=limit, order=order)
        except UnknownCursor:
            raise unknown_cursor("Session", after) from None

    async def find(self, tenant: str | None, session_id: str) -> SessionRecord:
        """
        A session by its id.

        Raises:
            ClientError: 404; there is none, or it is another tenant's.
        """
        session = await self._sessions.get(tenant, session_id) if _ID.fullmatch(session_id) else None
        if session is None:  # not stored yet
            live = self.live_records.get(session_id)
            session = live if live is not None and tenant in (None, live.tenant) else None
        if session is None:
            raise ClientError(f"Session with id '{shorten(session_id)}' not found.", status=404, code="session_not_found")
        return session

    async def files(self, session: SessionRecord) -> Sequence[Blob]:
        """
        A session's files.

        Raises:
            ClientError: 409; the session has not ended.
        """
        if session.state == "live":
            raise ClientError("The session has not ended; its recording can be read when it has.", status=409, code="session_is_live")
        return await self._blobs.list_files(session.id)

    async def file(self, session: SessionRecord, name: str) -> Blob:
        """
        One file of a session.

        Raises:
            ClientError: 404; there is no file of that name.
        """
        for blob in await self.files(session):
            if blob.name == name:
                return blob
        raise ClientError(f"The session has no file '{shorten(name)}'.", status=404, code="file_not_found")

    def chunks(self, session: SessionRecord, file: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """A file's bytes from `start` up to `end`, in chunks."""
        return self._blobs.read_chunks(f"{session.id}/{file.name}", start, end)

    async def events(self, session: SessionRecord) -> Blob:
        """The file with the session's events."""
        return await self.file(session, EVENTS)

    async def delete(self, tenant: str | None, session_id: str) -> None:
        """
        Delete a recording.

        Raises:
            ClientError: there is none, or its session has not ended.
        """
        session = await self.find(tenant, session_id)
        await self.files(session)
        await self._delete_recording(session)

    async def expire(self) -> None:
        """
        Delete recordings that are too old, then the oldest while all together are too large; end sessions that were
        lost.
        """
        await self._end_lost_sessions()
        settings = self._settings
        before = self._clock() - settings.days * DAY_S if settings.days else -1.0
        excess_bytes = await self._sessions.total_bytes() - settings.max_gb * GB if settings.max_gb else 0.0
        while batch := await self._sessions.oldest(_BATCH_SIZE):
            for session in batch:
                # The oldest come first, so all that follow are to be kept as well.
                if excess_bytes <= 0 and (session.ended_at or 0) > before:
                    return
                await self._delete_recording(session)
                excess_bytes -= session.bytes

    async def _end_lost_sessions(self) -> None:
        now = int(self._clock())
        for session in await self._sessions.live():
            if session.created_at < now - LIVE_TIMEOUT_S:
                await self._sessions.put(structs.replace(session, state="interrupted", ended_at=now, reason="lost"))

    async def _delete_recording(self, session: SessionRecord) -> None:
        # Files first, so that there is never a file without a record to find it by.
        await self._blobs.delete_folder(session.id)
        await self._sessions.delete(None, session.id)
