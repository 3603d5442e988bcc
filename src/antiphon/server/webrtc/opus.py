"""
Converts between the audio of a call, Opus in packets of 20 ms, and that of the session, s16le mono at 24 kHz.

Opus supports 24 kHz, so nothing is resampled for output. It runs on the event loop: a packet takes 0.1 ms, less than
handing it to a thread.
"""

import asyncio
import uuid
from collections.abc import Callable
from fractions import Fraction

import av
from av.stream import Stream

from antiphon.audio import size_bytes
from antiphon.server.webrtc.playback import PlaybackQueue

# RFC 7587, 4.1: Opus packets are timed at 48 kHz, whatever the rate of their audio.
RATE_HZ, RTP_RATE_HZ = 24_000, 48_000
PACKET_MS = 20
PACKET_BYTES = size_bytes(PACKET_MS, RATE_HZ)
PACKET_SAMPLES = RATE_HZ * PACKET_MS // 1000
RTP_PACKET_SAMPLES = RTP_RATE_HZ * PACKET_MS // 1000
BIT_RATE = 32_000

SILENT_PACKET = bytes((0xF8, 0xFF, 0xFE))
"""20 ms of silence, in Opus: the first byte says CELT, full band, 20 ms, mono, one frame (RFC 6716, 3.1)."""

TAIL_PACKETS = 2
"""Packets of silence that are encoded after audio, because the encoder's look-ahead delays its end."""

MAX_LATE_S = 0.2
"""How late a packet may be for the next ones to catch up; beyond that, the schedule starts anew."""

SILENCE_AFTER_S = 0.2
"""After this long without input, silence is assumed: a muted microphone must still end the turn."""

MAX_GAP_S = 1.0
"""The most silence inserted for lost packets."""


class OpusEncoder:
    """Encodes s16le audio at 24 kHz to Opus. Each packet depends on those before it, so a track has one of its own."""

    def __init__(self) -> None:
        self._codec = av.CodecContext.create("libopus", "w")
        self._codec.sample_rate = RATE_HZ
        self._codec.layout = "mono"
        self._codec.format = "s16"
        self._codec.bit_rate = BIT_RATE
        self._codec.time_base = Fraction(1, RATE_HZ)
        self._codec.options = {"application": "voip", "compression_level": "5"}
        self._samples = 0

    def encode(self, pcm: bytes) -> bytes:
        """
        A packet of 20 ms.

        Args:
            pcm: 20 ms or less; the rest is silence.
        """
        frame = av.AudioFrame(format="s16", layout="mono", samples=PACKET_SAMPLES)
        frame.planes[0].update(pcm.ljust(PACKET_BYTES, b"\0"))
        frame.sample_rate = RATE_HZ
        frame.pts = self._samples
        frame.time_base = Fraction(1, RATE_HZ)
        self._samples += PACKET_SAMPLES
        return b"".join(map(bytes, self._codec.encode(frame)))


class OutputAudioTrack:
    """
    The track that the server sends: playback in real time, and silence in between.

    Args:
        on_tick: called with every packet.
    """

    kind = "audio"

    def __init__(self, playback: PlaybackQueue, on_tick: Callable[[], None]) -> None:
        self.id = str(uuid.uuid4())
        self._playback = playback
        self._on_tick = on_tick
        self._encoder = OpusEncoder()
        self._packet_count = 0
        self._tail_packets = 0
        self._due_at: float | None = None

    async def recv(self) -> "av.Packet[Stream]":
        """The next packet, when it is due."""
        now = asyncio.get_running_loop().time()
        if self._due_at is None or self._due_at < now - MAX_LATE_S:
            self._due_at = now
        await asyncio.sleep(max(0.0, self._due_at - now))
        self._due_at += PACKET_MS / 1000
        self._on_tick()
        packet: av.Packet[Stream] = av.Packet(self._next_packet())
        packet.pts = self._packet_count * RTP_PACKET_SAMPLES
        packet.time_base = Fraction(1, RTP_RATE_HZ)
        self._packet_count += 1
        return packet

    def stop(self) -> None:
        """Nothing to do; aiortc calls it."""

    def release(self) -> None:
        """The call is over: play silence, if anything."""
        self._playback = PlaybackQueue()
        self._on_tick = lambda: None

    def _next_packet(self) -> bytes:
        pcm = self._playback.take(PACKET_BYTES)
        if pcm:
            self._tail_packets = TAIL_PACKETS
        elif self._tail_packets:
            self._tail_packets -= 1
        # Most of a call is silence, which is always the same packet, so it isn't encoded.
        else:
            return SILENT_PACKET
        return self._encoder.encode(pcm)


class InputAudioReceiver:
    """
    The client's audio without gaps, so that the session's clock stays correct.

    Args:
        on_audio: takes the audio in pieces.
    """

    def __init__(self, on_audio: Callable[[bytes], None]) -> None:
        self._on_audio = on_audio
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE_HZ)
        self._next_pts: int | None = None
        self._last_at = 0.0

    def receive(self, frame: av.AudioFrame) -> None:
        """A decoded frame; its `pts` counts samples at `RTP_RATE_HZ`."""
        pts = frame.pts
        assert pts is not None, "decoded audio has a time"
        # Lost packets: without silence in their place, all times of the session would be too early from here on.
        if self._next_pts is not None and pts > self._next_pts:
            self._on_audio(bytes(size_bytes(min(MAX_GAP_S, (pts - self._next_pts) / RTP_RATE_HZ) * 1000, RATE_HZ)))
        self._next_pts = pts + frame.samples
        self._last_at = asyncio.get_running_loop().time()
        for part in self._resampler.resample(frame):
            # FFmpeg pads planes; two bytes a sample are audio.
            self._on_audio(bytes(part.planes[0])[: 2 * part.samples])

    def tick(self) -> None:
        """20 ms have passed; if no input came for a while, add 20 ms of silence."""
        if self._next_pts is None or asyncio.get_running_loop().time() < self._last_at + SILENCE_AFTER_S:
            return
        self._next_pts += RTP_PACKET_SAMPLES
        self._on_audio(bytes(PACKET_BYTES))
