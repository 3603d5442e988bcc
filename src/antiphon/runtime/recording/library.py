"""Recordings that have been made: found, read, deleted, and forgotten in time."""

import re
import time
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import structs

from antiphon.config.settings import RecordingSettings
from antiphon.errors import ClientError, shorten
from antiphon.records import SessionRecord
from antiphon.runtime.recording.files import EVENTS
from antiphon.stores.base import SessionPage, SessionStore, SortOrder, UnknownCursor
from antiphon.stores.blobs import Blob, BlobStore

DAY_S, GB = 86_400, 10**9

LIVE_TIMEOUT_S = 2 * DAY_S
"""After how long a session that says it is live is taken for one whose server has died, and its spool with it."""

_BATCH_SIZE = 100

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
"""What an id can be: it is part of a path."""


class RecordingLibrary:
    """
    The recordings of a server.

    Args:
        settings: how long they are kept.
        clock: Unix seconds.
    """

    def __init__(
        self, sessions: SessionStore, blobs: BlobStore, settings: RecordingSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._sessions = sessions
        self._blobs = blobs
        self._settings = settings
        self._clock = clock

    async def page(self, tenant: str | None, *, after: str | None, limit: int, order: SortOrder) -> SessionPage:
        """
        A page of the sessions of a tenant, or of all.

        Raises:
            ClientError: `after` is none of them.
        """
        try:
            return await self._sessions.page(tenant, after=after, limit=limit, order=order)
        except UnknownCursor:
            raise ClientError(f"Session with id '{shorten(after)}' not found.", param="after", code="invalid_value") from None

    async def find(self, tenant: str | None, session_id: str) -> SessionRecord:
        """
        A session.

        Raises:
            ClientError: there is none, or it is another tenant's.
        """
        found = await self._sessions.get(tenant, session_id) if _ID.fullmatch(session_id) else None
        if found is None:
            raise ClientError(f"Session with id '{shorten(session_id)}' not found.", status=404, code="session_not_found")
        return found

    async def files(self, session: SessionRecord) -> Sequence[Blob]:
        """
        What there is of a session.

        Raises:
            ClientError: it has not ended.
        """
        if session.state == "live":
            raise ClientError("The session has not ended; its recording is there when it has.", status=409, code="session_is_live")
        return await self._blobs.list_files(session.id)

    async def file(self, session: SessionRecord, name: str) -> Blob:
        """
        One of its files.

        Raises:
            ClientError: there is none of that name.
        """
        for blob in await self.files(session):
            if blob.name == name:
                return blob
        raise ClientError(f"The session has no file '{shorten(name)}'.", status=404, code="file_not_found")

    def chunks(self, session: SessionRecord, file: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """A file from `start` up to `end`, piece by piece."""
        return self._blobs.read_chunks(f"{session.id}/{file.name}", start, end)

    async def events(self, session: SessionRecord) -> Blob:
        """The file that has the events."""
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
        """Delete what is too old, and the oldest while all of them are too much; what is live for ever is not."""
        await self._end_lost_sessions()
        settings = self._settings
        before = self._clock() - settings.days * DAY_S if settings.days else -1.0
        too_much = await self._sessions.total_bytes() - settings.most_gb * GB if settings.most_gb else 0.0
        while batch := await self._sessions.oldest(_BATCH_SIZE):
            for session in batch:
                if too_much <= 0 and (session.ended_at or 0) > before:
                    return
                await self._delete_recording(session)
                too_much -= session.bytes

    async def _end_lost_sessions(self) -> None:
        now = int(self._clock())
        for session in await self._sessions.live():
            if session.created_at < now - LIVE_TIMEOUT_S:
                await self._sessions.put(structs.replace(session, state="interrupted", ended_at=now, reason="lost"))

    async def _delete_recording(self, session: SessionRecord) -> None:
        # In this order, so that a file is never without a record by which it is found.
        await self._blobs.delete_folder(session.id)
        await self._sessions.delete(None, session.id)
