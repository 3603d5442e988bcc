"""Sessions to be recorded, event by event, and a recorder for them."""

import asyncio
import contextlib
import io
import wave

import msgspec

from antiphon.runtime.metrics import Metrics
from antiphon.runtime.recorder import Recorder
from antiphon.runtime.recordings import Recordings
from antiphon.settings import RecordingSettings
from antiphon.stores.blobs import Blobs
from antiphon.stores.memory import Memory
from antiphon.wire import realtime_server as server
from antiphon.wire.realtime_client import InputAudioBufferAppend
from antiphon.wire.realtime_session import Audio, AudioInput, AudioOutput, PcmFormat, Session


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
    """A recorder, where it keeps what it records, and what is there."""

    def __init__(self, folder, place=None, **settings):
        self.folder = folder
        self.store = Memory()
        self.metrics = Metrics()
        self.blobs = Blobs(str(place or folder / "kept"))
        self.recordings = Recordings(self.store.sessions, self.blobs, RecordingSettings(**settings))
        self.recorder = Recorder(folder / "spool", self.blobs, self.store.sessions, self.metrics, self.recordings.expire)

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
        return b"".join([piece async for piece in self.blobs.pieces(f"{session_id}/{name}")])

    async def lines(self, session_id):
        return [msgspec.json.decode(line) for line in (await self.file(session_id, "events.jsonl")).splitlines()]

    async def sound(self, session_id, name):
        """Rate and samples, as a player reads them."""
        with wave.open(io.BytesIO(await self.file(session_id, name))) as file:
            return file.getframerate(), file.readframes(file.getnframes())
