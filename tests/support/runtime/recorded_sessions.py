"""Sessions to record, event by event, and a recorder for them."""

import asyncio
import contextlib
import io
import time
import wave

import msgspec

from antiphon.config.settings import RecordingSettings
from antiphon.records import SessionRecord
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.recording.library import RecordingLibrary
from antiphon.runtime.recording.recorder import Recorder
from antiphon.runtime.recording.spool import NO_LIMITS
from antiphon.runtime.replay.steps import DownloadedRecording
from antiphon.stores.blobs import BlobStore
from antiphon.stores.memory import MemoryStore
from antiphon.wire.realtime import server_events as server
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.session import Audio, AudioInput, AudioOutput, PcmFormat, Session


def created(session_id, heard=None, spoken=None):
    audio = Audio(input=AudioInput(format=heard or PcmFormat()), output=AudioOutput(format=spoken or PcmFormat()))
    session = msgspec.structs.replace(Session(audio=audio), extra=msgspec.UNSET)
    session.id = session_id
    return server.SessionCreated(event_id="event_1", session=session)


def heard(pcm):
    return InputAudioBufferAppend(audio=pcm)


def spoken(pcm):
    return server.ResponseOutputAudioDelta(
        event_id="event_2", response_id="resp_1", item_id="item_1", output_index=0, content_index=0, delta=pcm
    )


class Desk:
    """A recorder, its storage, and what is in it."""

    def __init__(self, folder, place=None, room=NO_LIMITS, blobs=BlobStore, now=time.time, **settings):
        self.noticed = []
        self.rounds = 0
        self.folder = folder
        self.store = MemoryStore()
        self.metrics = Metrics()
        self.blobs = blobs(str(place or folder / "kept"))
        self.recordings = RecordingLibrary(self.store.sessions, self.blobs, RecordingSettings(**settings), now)
        self.recorder = Recorder(
            folder / "spool", self.blobs, self.store.sessions, self.metrics, self._sweep, room, self.noticed.append, now=now
        )

    async def _sweep(self):
        await self.recordings.expire()
        self.rounds += 1

    @contextlib.asynccontextmanager
    async def open(self):
        await self.recorder.open()
        try:
            yield self
        finally:
            await self.recorder.close()

    def tap(self, tenant="ada", protocol="realtime", mode="conversation"):
        return self.recorder.tap(tenant=tenant, key_id="key_1", protocol=protocol, mode=mode, model="parrot")

    async def settled(self, session_id, state="kept"):
        """The record of a session, once it has that state."""
        async with asyncio.timeout(20):
            while (record := await self.store.sessions.get(None, session_id)) is None or record.state != state:  # noqa: ASYNC110 - a store sets no event
                await asyncio.sleep(0.01)
        return record

    async def file(self, session_id, name):
        return b"".join([piece async for piece in self.blobs.read_chunks(f"{session_id}/{name}")])

    async def lines(self, session_id):
        return [msgspec.json.decode(line) for line in (await self.file(session_id, "events.jsonl")).splitlines()]

    async def sound(self, session_id, name):
        """Sample rate and samples, as a player reads them."""
        with wave.open(io.BytesIO(await self.file(session_id, name))) as file:
            return file.getframerate(), file.readframes(file.getnframes())


def recording(lines, files, **record):
    """A recording with these lines and files, as it is downloaded."""
    told = SessionRecord(
        **{"id": "sess_1", "tenant": "", "key_id": None, "protocol": "realtime", "mode": "conversation", "model": "parrot", "created_at": 1}
        | record
    )
    events = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return DownloadedRecording({"meta.json": msgspec.json.encode(told), "events.jsonl": events, **files})
