"""Microphone and speakers, as PortAudio has them, and what of the sound is still to be played."""

import contextlib
import importlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, cast

from antiphon.audio import duration_ms
from antiphon.cli.voice.audio import CHUNK_MS, RATE_HZ
from antiphon.errors import ServerError

_BLOCK_FRAMES = RATE_HZ * CHUNK_MS // 1000
_FILE_HINT = "Or talk with a recording: antiphon talk question.wav"


class DeviceStream(Protocol):
    """One way of sound through a device, from when it is entered to when it is left."""

    @property
    def latency(self) -> float:
        """Seconds between the device and whoever calls back."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *reason: Any) -> Any: ...


class SoundDeviceLibrary(Protocol):
    """What is used of the package sounddevice."""

    @property
    def RawInputStream(self) -> Callable[..., DeviceStream]:
        """Calls back with what the microphone brought."""

    @property
    def RawOutputStream(self) -> Callable[..., DeviceStream]:
        """Calls back for what the speakers are to play."""

    @property
    def PortAudioError(self) -> type[Exception]:
        """A device can't be had, or not so."""


def load_library(import_module: Callable[[str], Any] = importlib.import_module) -> SoundDeviceLibrary:
    """
    The library that reaches microphones and speakers.

    Raises:
        ServerError: it is not here.
    """
    try:
        return cast(SoundDeviceLibrary, import_module("sounddevice"))
    except ModuleNotFoundError:
        raise ServerError(f"To talk by microphone the package sounddevice is needed: pip install 'antiphon[talk]'. {_FILE_HINT}") from None
    except OSError:
        raise ServerError(
            f"To talk by microphone PortAudio is needed: on Debian and Ubuntu, sudo apt install libportaudio2. {_FILE_HINT}"
        ) from None


class PlaybackPart(NamedTuple):
    """A part of an item that sounds, as the protocol names it."""

    item_id: str
    content_index: int


class InterruptedPart(NamedTuple):
    """What was not played to its end, and how much of it was."""

    part: PlaybackPart
    played_ms: int


class SpeakerPlayback:
    """
    Sound on its way to the speakers: put here as it comes, taken by the thread of the device.

    Args:
        latency_ms: how long after it was taken sound is heard.
    """

    def __init__(self, latency_ms: float = 0) -> None:
        self.latency_ms = latency_ms
        self._lock = threading.Lock()
        self._queue: deque[tuple[PlaybackPart, bytes]] = deque()
        self._played_bytes: dict[PlaybackPart, int] = {}

    def put(self, part: PlaybackPart, pcm: bytes) -> None:
        """Play this once all before it was played."""
        with self._lock:
            if part not in self._played_bytes:
                waiting = {each for each, _pcm in self._queue}
                self._played_bytes = {each: size for each, size in self._played_bytes.items() if each in waiting} | {part: 0}
            self._queue.append((part, pcm))

    def read(self, size: int) -> bytes:
        """The next so many bytes; silence where there is no more."""
        taken = bytearray()
        with self._lock:
            while self._queue and len(taken) < size:
                part, pcm = self._queue.popleft()
                piece, rest = pcm[: size - len(taken)], pcm[size - len(taken) :]
                taken += piece
                self._played_bytes[part] += len(piece)
                if rest:
                    self._queue.appendleft((part, rest))
        return bytes(taken.ljust(size, b"\0"))

    def interrupt(self) -> list[InterruptedPart]:
        """Play no more of what is here; what of each part was heard, save where that is all of it."""
        with self._lock:
            parts = dict.fromkeys(part for part, _pcm in self._queue)
            heard = {part: max(0, int(duration_ms(self._played_bytes[part], RATE_HZ) - self.latency_ms)) for part in parts}
            self._queue.clear()
        return [InterruptedPart(part, played_ms) for part, played_ms in heard.items()]


class AudioDevices:
    """The microphone and the speakers that the system has for those who don't choose."""

    def __init__(self, library: SoundDeviceLibrary) -> None:
        self._library = library

    @contextlib.contextmanager
    def open(self, on_audio: Callable[[bytes], None]) -> Iterator[SpeakerPlayback]:
        """
        Both of them, in use.

        Args:
            hear: takes what the microphone brings, in pieces, from a thread of the device's.

        Yields:
            What the speakers play from.

        Raises:
            ServerError: there is none, or none that can be used so.
        """
        playback = SpeakerPlayback()

        def brought(sound: Any, _frames: int, _time: Any, _status: Any) -> None:
            on_audio(bytes(sound))

        def wanted(sound: Any, _frames: int, _time: Any, _status: Any) -> None:
            sound[:] = playback.read(len(sound))

        form = {"samplerate": RATE_HZ, "channels": 1, "dtype": "int16", "blocksize": _BLOCK_FRAMES}
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._library.RawInputStream(callback=brought, **form))
                speakers = held.enter_context(self._library.RawOutputStream(callback=wanted, **form))
            except self._library.PortAudioError as error:
                raise ServerError(f"Microphone and speakers can't be used: {error}. {_FILE_HINT}") from None
            playback.latency_ms = 1000 * speakers.latency
            yield playback
