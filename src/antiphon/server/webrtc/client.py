"""
The client of a call: events on the data channel, audio on the tracks, in both directions.

Events that the session sends before the channel is open wait here, up to a limit: some calls never open one.
"""

import asyncio
from typing import Protocol

from antiphon.errors import ApiError
from antiphon.runtime.core.calls import RealtimeDriver
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.core.taps import Tap
from antiphon.server.live.client import close_code
from antiphon.server.realtime.client import deliver_event
from antiphon.server.transport.limits import BACKLOG_LIMIT_BYTES
from antiphon.server.webrtc.playback import PlaybackQueue
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.dialects import Dialect

MESSAGE_LIMIT_BYTES = 256 << 10
"""The largest message on the channel that the libraries of both sides accept."""

BUFFER_FULL = "input_audio_buffer_full"


class DataChannel(Protocol):
    """The part of a WebRTC data channel that is used."""

    @property
    def readyState(self) -> str:
        """`connecting`, `open`, `closing` or `closed`."""

    @property
    def bufferedAmount(self) -> int:
        """Bytes that wait to be sent."""

    def send(self, data: str) -> None:
        """Send a text message. It is queued without a limit; see `bufferedAmount`."""


class CallClient:
    """
    The client of one call.

    Args:
        accepts_audio: whether the session takes audio input.

    Attributes:
        end_reason: why the session ended, as a metrics label.
        has_unsent_error: whether it ended with an error before the channel was open, so that the client has not read it yet.
    """

    def __init__(self, dialect: Dialect, tap: Tap, playback: PlaybackQueue, *, accepts_audio: bool) -> None:
        self.end_reason = "failed"
        self._decode = dialect.decode_client
        self._encode = dialect.encode_server
        self._tap = tap
        self._playback = playback
        self._accepts_audio = accepts_audio
        self._driver: RealtimeDriver | None = None
        self._channel: DataChannel | None = None
        self._early_frames: list[str] = []
        self._early_bytes = 0
        self.has_unsent_error = self._is_buffer_full = self._has_left = False

    def begin(self, driver: RealtimeDriver) -> None:
        """Connect the driver; hang up where the client has gone already."""
        self._driver = driver
        if self._has_left:
            driver.hang_up()

    # Called by the driver

    def send(self, event: events.ServerEvent) -> None:
        """Send an event. Audio goes to playback instead of the channel."""
        match event:
            # Realtime, WebRTC: the client gets audio on the track, and no `response.output_audio.delta`.
            case events.ResponseOutputAudioDelta():
                self._playback.append((event.item_id, event.content_index), event.delta)
                self._tap.on_server_event(event)
                return
            case events.ResponseOutputAudioDone():
                self._playback.close_part((event.item_id, event.content_index))
            case events.OutputAudioBufferCleared():
                self._playback.clear()
            case events.ErrorEvent() if self._is_repeated(event):
                return
            case _:
                pass
        self._send_event(event)

    def flush(self) -> None:
        """Events were sent already; a client with too large a backlog is dropped."""
        if self._channel is not None and self._channel.bufferedAmount > BACKLOG_LIMIT_BYTES:
            # Not now: `flush` is called while the session is being advanced.
            asyncio.get_running_loop().call_soon(self.on_disconnect)

    def close(self, error: ApiError | None) -> None:
        """The session is over; `run_call` closes the connection."""
        self.end_reason = close_code(error)[1]
        self.has_unsent_error = error is not None and self._channel is None and not self._has_left
        self._has_left = True

    def _is_repeated(self, event: events.ErrorEvent) -> bool:
        """Whether this error repeats the last one: with a full input buffer, every further packet would report it."""
        was_full, self._is_buffer_full = self._is_buffer_full, event.error.code == BUFFER_FULL
        return was_full and self._is_buffer_full

    def _send_event(self, event: events.ServerEvent) -> None:
        frame = self._encode(event)
        if frame is None:
            return
        if len(frame) > MESSAGE_LIMIT_BYTES:
            too_large = events.RealtimeError(
                type="server_error",
                code="event_too_large",
                message=f"An event '{event.__struct_config__.tag}' of {len(frame)} bytes is too large for the data channel.",
                param=None,
                event_id=None,
            )
            self._send_event(events.ErrorEvent(event_id=new_id("event"), error=too_large))
            return
        self._tap.on_server_event(event)
        if self._channel is None:
            self._keep_early(frame)
        elif self._channel.readyState == "open":
            self._channel.send(frame.decode())

    def _keep_early(self, frame: bytes) -> None:
        self._early_bytes += len(frame)
        # A caller may only listen and speak, for as long as a session lasts, so its call goes on without its events.
        if self._early_bytes > BACKLOG_LIMIT_BYTES:
            self._early_frames.clear()
        else:
            self._early_frames.append(frame.decode())

    # CallListener

    def on_channel(self, channel: DataChannel) -> None:
        self._channel = channel
        # The session can't be followed from its middle: this client was too slow, as in `flush`.
        if self._early_bytes > BACKLOG_LIMIT_BYTES:
            self.on_disconnect()
            return
        for frame in self._early_frames:
            channel.send(frame)
        self._early_frames.clear()

    def on_text(self, text: bytes) -> None:
        assert self._driver is not None
        deliver_event(text, self._decode, self._tap, self._driver)

    def on_audio(self, pcm: bytes) -> None:
        if self._driver is None or not self._accepts_audio:
            return
        event = InputAudioBufferAppend(audio=pcm)
        self._tap.on_client_event(event)
        self._driver.receive_from_client(event)

    def on_disconnect(self) -> None:
        was_there, self._has_left = not self._has_left, True
        if was_there and self._driver is not None:
            self._driver.hang_up()
