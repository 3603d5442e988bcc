"""Clients that send too fast for too long, and clients that miss too much."""

import asyncio
import json

import pytest

from antiphon.protocols.minicpmo.session import ClientThrottled
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.core.session_metrics import MinicpmoSessionMetrics
from antiphon.server.minicpmo.client import Attachment, MinicpmoClient
from antiphon.server.minicpmo.pacing import MAX_TOO_FAST_S, AudioPacer
from antiphon.server.minicpmo.resume import MISSED_LIMIT_BYTES, ResumableSessions
from antiphon.wire.minicpmo.server_events import OutputDelta, SessionCreated
from support.server.minicpmo_peer import SILENCE

pytestmark = pytest.mark.anyio

PICTURE = "/9j/wAALCAACAAIBAREA/9k="
"""As much of a JPEG file as says how large its picture is."""


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Socket:
    """Writes down what is done to it."""

    def __init__(self):
        self.frames, self.closed, self.pauses, self.close_code = [], None, 0, None
        self.has_closed = asyncio.Event()

    def send(self, frame):
        self.frames.append(json.loads(frame))

    def close(self, code, reason):
        self.closed = self.closed or (code, reason)
        self.has_closed.set()

    def flush(self):
        pass

    def pause_reading(self):
        self.pauses += 1

    def resume_reading(self):
        pass


class Driver:
    """Writes down what it hears."""

    def __init__(self):
        self.heard, self.is_gone, self.hang_ups, self.client = [], False, 0, None

    def receive_from_client(self, message):
        self.heard.append(message)

    def hang_up(self):
        self.is_gone = True
        self.hang_ups += 1
        if self.client is not None:
            self.client.flush()

    def resume(self):
        pass


async def test_who_never_slows_down_is_held_back_then_told_and_dropped():
    now = 0.0
    pace = AudioPacer(lambda: now)
    client = MinicpmoClient("audio", "", MinicpmoSessionMetrics(Metrics(), "m"), ResumableSessions(), 0, pace)
    line, driver = Attachment(), Driver()
    line.websocket = socket = Socket()
    client.start(line, driver)
    frame = json.dumps({"type": "input.append", "input": {"audio": SILENCE}}).encode()
    while socket.closed is None:
        line.on_text(frame)
        now += 0.1
    assert MAX_TOO_FAST_S < now < MAX_TOO_FAST_S + 3
    assert socket.pauses > 100 and driver.is_gone
    assert socket.closed[0] == 1008 and socket.frames[-1]["error"]["code"] == "rate_limit_exceeded"
    heard = len(driver.heard)
    line.on_text(frame)
    assert len(driver.heard) == heard
    assert client.end_reason == "refused"


async def test_pictures_that_come_faster_than_they_could_be_seen_before_patience_ends_are_told_so():
    now = 0.0
    pace = AudioPacer(lambda: now)
    resumable, counted = ResumableSessions(), MinicpmoSessionMetrics(Metrics(), "m")
    client = MinicpmoClient("video", "", counted, resumable, 60, pace)
    line, driver = Attachment(), Driver()
    line.websocket = socket = Socket()
    client.start(line, driver)
    client.send(SessionCreated(session_id="s", mode="full_duplex", metrics={}, resume_token="token"))
    frame = json.dumps({"type": "input.append", "input": {"audio": "", "video_frames": [PICTURE] * 8}}).encode()
    for now, count in ((0.0, 40), (10.0, 20), (MAX_TOO_FAST_S - 0.02, 1)):  # noqa: B007 - the clock reads it
        for _ in range(count):
            line.on_text(frame)
        assert socket.closed is None
    held = [message.duration_s for message in driver.heard if isinstance(message, ClientThrottled)]
    assert len(driver.heard) - len(held) == 61 and max(held) == pytest.approx(11) and held[-1] == pytest.approx(0.02)
    async with asyncio.timeout(5):
        await socket.has_closed.wait()
    assert socket.closed[0] == 1008 and driver.is_gone and not resumable
    error = socket.frames[-1]
    assert error["error"] | {"message": ""} == {"code": "rate_limit_exceeded", "message": "", "type": "rate_limit_error"}
    assert error["server_send_ts"] > 1e9 and error["seq"] == 2 and counted.events_out == 2, "it is an event of the session, like all others"


async def test_who_has_missed_too_much_is_given_up_once():
    resumable = ResumableSessions()
    client = MinicpmoClient("audio", "", MinicpmoSessionMetrics(Metrics(), "m"), resumable, 60)
    line, driver = Attachment(), Driver()
    line.websocket, driver.client = Socket(), client
    client.start(line, driver)
    client.send(SessionCreated(session_id="s", mode="full_duplex", metrics={}, resume_token="token"))
    client.flush()
    line.on_disconnect()
    assert len(resumable) == 1 and not driver.is_gone
    for _ in range(2):
        client.send(OutputDelta(kind="audio", session_id="s", response_id="r", audio=bytes(MISSED_LIMIT_BYTES), metrics={}))
        client.flush()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(resumable) == 0 and driver.hang_ups <= 2
