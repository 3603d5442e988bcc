"""The events of a call before its channel is open."""

import tracemalloc

import pytest

from antiphon.server.transport.limits import BACKLOG_LIMIT_BYTES
from antiphon.server.webrtc.client import CallClient
from antiphon.server.webrtc.playback import PlaybackQueue
from antiphon.wire.realtime.dialects import DIALECTS
from antiphon.wire.realtime.server_events import OutputAudioBufferCleared

FRAME_BYTES = 100
"""Less than the JSON of one event."""


class Watching:
    """A tap, and the driver of the session."""

    has_hung_up = False

    def on_server_event(self, event):
        """Nothing is noted."""

    def hang_up(self):
        self.has_hung_up = True


class Channel:
    """One that is open."""

    readyState = "open"
    bufferedAmount = 0

    def __init__(self):
        self.sent = []

    def send(self, text):
        self.sent.append(text)


@pytest.mark.parametrize(("count", "is_followed"), [(100, True), (2 * BACKLOG_LIMIT_BYTES // FRAME_BYTES, False)])
def test_events_wait_for_the_channel_within_a_limit_behind_which_the_call_has_sound_alone(count, is_followed):
    watching, channel = Watching(), Channel()
    client = CallClient(DIALECTS["ga"], watching, PlaybackQueue(), accepts_audio=True)
    client.begin(watching)
    tracemalloc.start()
    for number in range(count):
        client.send(OutputAudioBufferCleared(event_id=f"event_{number:0{FRAME_BYTES}}", response_id="resp_1"))
        client.flush()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 2 * BACKLOG_LIMIT_BYTES and not watching.has_hung_up
    client.on_channel(channel)
    assert len(channel.sent) == count * is_followed
    assert watching.has_hung_up is not is_followed
