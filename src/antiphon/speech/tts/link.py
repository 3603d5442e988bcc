"""
What the server and the process of a voice say to each other: typed messages, each behind its length, over a socket pair.

A voice lives in a process of its own because of what it is made of: native code that may crash, and libraries whose licence is not ours.
"""

from collections.abc import Iterator
from struct import Struct as Format

from msgspec import Struct, msgpack


class _Message(Struct, frozen=True, tag=True, array_like=True):
    pass


class StartVoice(_Message, frozen=True):
    """
    To a process that has just begun: what it is to speak with.

    Attributes:
        paths: of its weights; what each is, is for the kind of voice to know.
        rate_hz: of all the sound that is wanted, whatever the voice's own.
    """

    paths: tuple[str, ...]
    rate_hz: int


class VoiceReady(_Message, frozen=True):
    """From a process: it has loaded its first voice and can speak."""


class VoiceFailed(_Message, frozen=True):
    """From a process: it can't speak, and ends; `message` says how that is mended."""

    message: str


class Synthesize(_Message, frozen=True):
    """
    Speak this.

    Attributes:
        ahead: whether the same answer has something else that is being made; then others may go before it.
    """

    id: int
    text: str
    voice: str
    speed: float
    ahead: bool = False


class StopSynthesis(_Message, frozen=True):
    """Never mind; what was asked may be answered all the same, by whoever had done it already."""

    id: int


class TimedWord(Struct, frozen=True, array_like=True):
    """A word with the white space behind it, and for how many samples it sounds with the pause after it."""

    text: str
    samples: int


class SynthesisDone(_Message, frozen=True):
    """All of what was to be said: s16le mono, and the words that are heard in it, one after the other."""

    id: int
    pcm: bytes
    words: tuple[TimedWord, ...]


class SynthesisFailed(_Message, frozen=True):
    """It could not be said; the process is well."""

    id: int
    message: str


VoiceCommand = StartVoice | Synthesize | StopSynthesis
VoiceEvent = VoiceReady | VoiceFailed | SynthesisDone | SynthesisFailed

_LENGTH = Format("!I")
_encoder = msgpack.Encoder()
command_decoder: msgpack.Decoder[VoiceCommand] = msgpack.Decoder(VoiceCommand)
event_decoder: msgpack.Decoder[VoiceEvent] = msgpack.Decoder(VoiceEvent)


def encode_frame(message: VoiceCommand | VoiceEvent) -> bytes:
    """The message as it goes over the socket."""
    packed = _encoder.encode(message)
    return _LENGTH.pack(len(packed)) + packed


class VoiceFrameReader:
    """Takes apart what comes from the socket."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The messages that are whole with these bytes, packed."""
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            packed = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield packed
