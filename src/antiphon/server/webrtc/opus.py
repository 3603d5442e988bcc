"""
The sound of a call as it is on the line, which is Opus in packets of 20 ms, and as it is in the session: s16le mono at 24 kHz.

Opus is coded at the session's rate, which it knows, and on the event loop: a packet takes a tenth of a millisecond, and handing it to a
thread would take longer.
"""

import asyncio
import uuid
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av

from antiphon.audio import bytes_of
from antiphon.server.webrtc.playback import Playing

RATE_HZ, LINE_RATE_HZ = 24_000, 48_000
PACKET_MS = 20
PACKET_BYTES = bytes_of(PACKET_MS, RATE_HZ)
PACKET_SAMPLES = RATE_HZ * PACKET_MS // 1000
LINE_SAMPLES = LINE_RATE_HZ * PACKET_MS // 1000
BIT_RATE = 32_000

SILENT_PACKET = bytes((0xF8, 0xFF, 0xFE))
"""20 ms of silence, in Opus."""

TAIL_PACKETS = 2
"""How many packets of silence are coded after sound, so that what the coder looked ahead for is heard."""

LATE_S = 0.2
"""How late a packet may be and be made up for; later than that, the machine has been standing still."""

QUIET_S = 0.2
"""How long nothing comes in before it is taken for silence; a microphone may be switched off in the middle of a turn, which is to end."""

GAP_LIMIT_S = 1.0
"""The most silence that stands for packets that were lost."""


class Coder:
    """Opus from sound."""

    def __init__(self) -> None:
        self._codec: Any = av.CodecContext.create("libopus", "w")
        self._codec.sample_rate = RATE_HZ
        self._codec.layout = "mono"
        self._codec.format = "s16"
        self._codec.bit_rate = BIT_RATE
        self._codec.time_base = Fraction(1, RATE_HZ)
        self._codec.options = {"application": "voip", "compression_level": "5"}
        self._samples = 0

    def packet(self, pcm: bytes) -> bytes:
        """
        20 ms on the line.

        Args:
            pcm: as long or shorter; what is missing is silence.
        """
        frame = av.AudioFrame(format="s16", layout="mono", samples=PACKET_SAMPLES)
        frame.planes[0].update(pcm.ljust(PACKET_BYTES, b"\0"))
        frame.sample_rate = RATE_HZ
        frame.pts = self._samples
        frame.time_base = Fraction(1, RATE_HZ)
        self._samples += PACKET_SAMPLES
        return b"".join(map(bytes, self._codec.encode(frame)))


class Speaker:
    """
    The track that the server sends: what is playing, at the pace of time, and silence where nothing is.

    Args:
        ticks: called with every packet.
    """

    kind = "audio"

    def __init__(self, playing: Playing, ticks: Callable[[], None]) -> None:
        self.id = str(uuid.uuid4())
        self._playing = playing
        self._ticks = ticks
        self._coder = Coder()
        self._sent = 0
        self._tail = 0
        self._due_at: float | None = None

    async def recv(self) -> Any:
        """The next packet, when its time has come."""
        now = asyncio.get_running_loop().time()
        if self._due_at is None or self._due_at < now - LATE_S:
            self._due_at = now
        await asyncio.sleep(max(0.0, self._due_at - now))
        self._due_at += PACKET_MS / 1000
        self._ticks()
        packet: Any = av.Packet(self._content())
        packet.pts = self._sent * LINE_SAMPLES
        packet.time_base = Fraction(1, LINE_RATE_HZ)
        self._sent += 1
        return packet

    def stop(self) -> None:
        """Nothing is sent any more."""

    def _content(self) -> bytes:
        pcm = self._playing.take(PACKET_BYTES)
        if pcm:
            self._tail = TAIL_PACKETS
        elif self._tail:
            self._tail -= 1
        else:
            return SILENT_PACKET
        return self._coder.packet(pcm)


class Microphone:
    """
    The client's sound, as a session hears it: without gaps, so that its clock is true.

    Args:
        heard: takes it, piece by piece.
    """

    def __init__(self, heard: Callable[[bytes], None]) -> None:
        self._heard = heard
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE_HZ)
        self._next_pts: int | None = None
        self._last_at = 0.0

    def take(self, frame: Any) -> None:
        """A frame as it was decoded; its time counts samples of the line."""
        pts: int = frame.pts
        if self._next_pts is not None and pts > self._next_pts:
            self._heard(bytes(bytes_of(min(GAP_LIMIT_S, (pts - self._next_pts) / LINE_RATE_HZ) * 1000, RATE_HZ)))
        self._next_pts = pts + frame.samples
        self._last_at = asyncio.get_running_loop().time()
        for part in self._resampler.resample(frame):
            self._heard(bytes(part.planes[0])[: 2 * part.samples])

    def tick(self) -> None:
        """20 ms have passed; where nothing came for a while, they were silent."""
        if self._next_pts is None or asyncio.get_running_loop().time() < self._last_at + QUIET_S:
            return
        self._next_pts += LINE_SAMPLES
        self._heard(bytes(PACKET_BYTES))
