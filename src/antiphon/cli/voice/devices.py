"""Microphone and speakers, as PortAudio has them, and what of the sound is still to be played."""

import contextlib
import importlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, cast

from antiphon.audio import ms_of
from antiphon.cli.voice.audio import PIECE_MS, RATE_HZ
from antiphon.errors import OurFault

_FRAMES = RATE_HZ * PIECE_MS // 1000
_OR_A_FILE = "Or talk with a recording: antiphon talk question.wav"


class Stream(Protocol):
    """One way of sound through a device, from when it is entered to when it is left."""

    @property
    def latency(self) -> float:
        """Seconds between the device and whoever calls back."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *reason: Any) -> Any: ...


class Library(Protocol):
    """What is used of the package sounddevice."""

    @property
    def RawInputStream(self) -> Callable[..., Stream]:
        """Calls back with what the microphone brought."""

    @property
    def RawOutputStream(self) -> Callable[..., Stream]:
        """Calls back for what the speakers are to play."""

    @property
    def PortAudioError(self) -> type[Exception]:
        """A device can't be had, or not so."""


def load(find: Callable[[str], Any] = importlib.import_module) -> Library:
    """
    The library that reaches microphones and speakers.

    Raises:
        OurFault: it is not here.
    """
    try:
        return cast(Library, find("sounddevice"))
    except ModuleNotFoundError:
        raise OurFault(f"To talk by microphone the package sounddevice is needed: pip install 'antiphon[talk]'. {_OR_A_FILE}") from None
    except OSError:
        raise OurFault(
            f"To talk by microphone PortAudio is needed: on Debian and Ubuntu, sudo apt install libportaudio2. {_OR_A_FILE}"
        ) from None


class Part(NamedTuple):
    """A part of an item that sounds, as the protocol names it."""

    item_id: str
    content_index: int


class Cut(NamedTuple):
    """What was not played to its end, and how much of it was."""

    part: Part
    played_ms: int


class Playback:
    """
    Sound on its way to the speakers: put here as it comes, taken by the thread of the device.

    Args:
        latency_ms: how long after it was taken sound is heard.
    """

    def __init__(self, latency_ms: float = 0) -> None:
        self.latency_ms = latency_ms
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Part, bytes]] = deque()
        self._taken: dict[Part, int] = {}

    def put(self, part: Part, pcm: bytes) -> None:
        """Play this once all before it was played."""
        with self._lock:
            if part not in self._taken:
                waiting = {each for each, _pcm in self._waiting}
                self._taken = {each: size for each, size in self._taken.items() if each in waiting} | {part: 0}
            self._waiting.append((part, pcm))

    def take(self, size: int) -> bytes:
        """The next so many bytes; silence where there is no more."""
        taken = bytearray()
        with self._lock:
            while self._waiting and len(taken) < size:
                part, pcm = self._waiting.popleft()
                piece, rest = pcm[: size - len(taken)], pcm[size - len(taken) :]
                taken += piece
                self._taken[part] += len(piece)
                if rest:
                    self._waiting.appendleft((part, rest))
        return bytes(taken.ljust(size, b"\0"))

    def cut(self) -> list[Cut]:
        """Play no more of what is here; what of each part was heard, save where that is all of it."""
        with self._lock:
            parts = dict.fromkeys(part for part, _pcm in self._waiting)
            heard = {part: max(0, int(ms_of(self._taken[part], RATE_HZ) - self.latency_ms)) for part in parts}
            self._waiting.clear()
        return [Cut(part, played_ms) for part, played_ms in heard.items()]


class Devices:
    """The microphone and the speakers that the system has for those who don't choose."""

    def __init__(self, library: Library) -> None:
        self._library = library

    @contextlib.contextmanager
    def opened(self, hear: Callable[[bytes], None]) -> Iterator[Playback]:
        """
        Both of them, in use.

        Args:
            hear: takes what the microphone brings, in pieces, from a thread of the device's.

        Yields:
            What the speakers play from.

        Raises:
            OurFault: there is none, or none that can be used so.
        """
        playback = Playback()

        def brought(sound: Any, _frames: int, _time: Any, _status: Any) -> None:
            hear(bytes(sound))

        def wanted(sound: Any, _frames: int, _time: Any, _status: Any) -> None:
            sound[:] = playback.take(len(sound))

        form = {"samplerate": RATE_HZ, "channels": 1, "dtype": "int16", "blocksize": _FRAMES}
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._library.RawInputStream(callback=brought, **form))
                speakers = held.enter_context(self._library.RawOutputStream(callback=wanted, **form))
            except self._library.PortAudioError as error:
                raise OurFault(f"Microphone and speakers can't be used: {error}. {_OR_A_FILE}") from None
            playback.latency_ms = 1000 * speakers.latency
            yield playback
