"""Microphone and speakers, by PortAudio, and the audio that is still to be played."""

import contextlib
import importlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, Self, cast

from antiphon.audio import duration_ms
from antiphon.cli.voice.audio import CHUNK_MS, RATE_HZ
from antiphon.errors import ServerError
from antiphon.installation import install_hint

_BLOCK_FRAMES = RATE_HZ * CHUNK_MS // 1000
_FILE_HINT = "Or talk with a recording, such as the one that comes with antiphon: antiphon talk --sample"


class DeviceStream(Protocol):
    """An input or an output; it runs while it is entered as a context."""

    @property
    def latency(self) -> float:
        """Seconds between the device and the callback."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *reason: object) -> bool | None: ...


class SoundDeviceLibrary(Protocol):
    """The part of the package sounddevice that is used here."""

    @property
    def RawInputStream(self) -> Callable[..., DeviceStream]:
        """Calls back with audio from the microphone."""

    @property
    def RawOutputStream(self) -> Callable[..., DeviceStream]:
        """Calls back for the audio to play next."""

    @property
    def PortAudioError(self) -> type[Exception]:
        """A device is missing, or can't be used like this."""


def load_library(import_module: Callable[[str], object] = importlib.import_module) -> SoundDeviceLibrary:
    """
    Import sounddevice.

    Raises:
        ServerError: the package, or PortAudio under it, is not installed.
    """
    try:
        return cast(SoundDeviceLibrary, import_module("sounddevice"))
    except ModuleNotFoundError:
        raise ServerError(f"Talking by microphone needs the package sounddevice. {install_hint('talk')} {_FILE_HINT}") from None
    except OSError:
        raise ServerError(
            f"Talking by microphone needs PortAudio: on Debian and Ubuntu, sudo apt install libportaudio2. {_FILE_HINT}"
        ) from None


class PlaybackPart(NamedTuple):
    """A content part with audio, by the ids of the Realtime API."""

    item_id: str
    content_index: int


class InterruptedPart(NamedTuple):
    """A part that was not played to its end."""

    part: PlaybackPart
    played_ms: int


class SpeakerPlayback:
    """
    Audio on its way to the speakers: added as it arrives, read by the device's thread.

    Args:
        latency_ms: how long after it is read audio can be heard.
    """

    def __init__(self, latency_ms: float = 0) -> None:
        self.latency_ms = latency_ms
        self._lock = threading.Lock()
        self._queue: deque[tuple[PlaybackPart, bytes]] = deque()
        self._played_bytes: dict[PlaybackPart, int] = {}

    def put(self, part: PlaybackPart, pcm: bytes) -> None:
        """Add audio behind all that waits."""
        with self._lock:
            if part not in self._played_bytes:
                # Forgets the parts that were played, so that a long conversation does not fill the memory.
                queued_parts = {other for other, _pcm in self._queue}
                self._played_bytes = {other: size for other, size in self._played_bytes.items() if other in queued_parts} | {part: 0}
            self._queue.append((part, pcm))

    def read(self, size: int) -> bytes:
        """The next `size` bytes, filled up with silence."""
        audio = bytearray()
        with self._lock:
            while self._queue and len(audio) < size:
                part, pcm = self._queue.popleft()
                chunk, rest = pcm[: size - len(audio)], pcm[size - len(audio) :]
                audio += chunk
                self._played_bytes[part] += len(chunk)
                if rest:
                    self._queue.appendleft((part, rest))
        return bytes(audio.ljust(size, b"\0"))

    def interrupt(self) -> list[InterruptedPart]:
        """Drop all that waits; returns the parts that were not played to their end."""
        with self._lock:
            parts = dict.fromkeys(part for part, _pcm in self._queue)
            # What the device has read, it still has to play: that takes its latency.
            played_ms = {part: max(0, int(duration_ms(self._played_bytes[part], RATE_HZ) - self.latency_ms)) for part in parts}
            self._queue.clear()
        return [InterruptedPart(part, ms) for part, ms in played_ms.items()]


class AudioDevices:
    """The system's default microphone and speakers."""

    def __init__(self, library: SoundDeviceLibrary) -> None:
        self._library = library

    @contextlib.contextmanager
    def open(self, on_audio: Callable[[bytes], None]) -> Iterator[SpeakerPlayback]:
        """
        Start both.

        Args:
            on_audio: gets chunks from the microphone, in a thread of the device.

        Yields:
            What the speakers play.

        Raises:
            ServerError: there are none, or they can't be used like this.
        """
        # Before the streams, whose callbacks begin at once; the latency is known only afterwards.
        playback = SpeakerPlayback()

        def on_input(buffer: memoryview, _frames: int, _time: object, _status: object) -> None:
            on_audio(bytes(buffer))

        def fill_output(buffer: memoryview, _frames: int, _time: object, _status: object) -> None:
            buffer[:] = playback.read(len(buffer))

        stream_format = {"samplerate": RATE_HZ, "channels": 1, "dtype": "int16", "blocksize": _BLOCK_FRAMES}
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._library.RawInputStream(callback=on_input, **stream_format))
                speakers = stack.enter_context(self._library.RawOutputStream(callback=fill_output, **stream_format))
            except self._library.PortAudioError as error:
                problem = "this machine has no microphone or no speakers" if "querying device -1" in str(error) else str(error)
                raise ServerError(f"Microphone and speakers can't be used: {problem}. {_FILE_HINT}") from None
            playback.latency_ms = 1000 * speakers.latency
            yield playback
