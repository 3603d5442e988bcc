"""
The messages between the server and a voice's process, over a socket pair.

A voice runs in a process of its own because it has native code that may crash, and libraries under the GPL.
"""

from msgspec import Struct, msgpack


class _Message(Struct, frozen=True, tag=True, array_like=True):
    pass


class StartVoice(_Message, frozen=True):
    """
    The first command to a process: load the voice.

    Attributes:
        paths: the weights, in the order that the kind of voice expects.
        rate_hz: the sample rate of all output, whatever the voice's own.
    """

    paths: tuple[str, ...]
    rate_hz: int


class VoiceReady(_Message, frozen=True):
    """The process has loaded its first voice and can speak."""


class VoiceFailed(_Message, frozen=True):
    """The process can't speak, and ends; `message` says how to fix that."""

    message: str


class Synthesize(_Message, frozen=True):
    """
    Synthesize a text.

    Attributes:
        ahead: whether another text of the same answer is still pending; then other answers may go first.
        before: the words spoken before it in the same sentence.
        continues: whether the sentence goes on after it.
    """

    id: int
    text: str
    voice: str
    speed: float
    ahead: bool = False
    before: str = ""
    continues: bool = False


class StopSynthesis(_Message, frozen=True):
    """Cancel a synthesis; its result may still come if it was done already."""

    id: int


class TimedWord(Struct, frozen=True, array_like=True):
    """
    A word with the white space behind it, and its samples including the pause after it; without text, more of the word
    before.
    """

    text: str
    samples: int


class SynthesizedAudio(_Message, frozen=True):
    """The next speech of a text: s16le mono, and its words in order."""

    id: int
    pcm: bytes
    words: tuple[TimedWord, ...]


class SynthesisDone(_Message, frozen=True):
    """All speech of a text was sent."""

    id: int


class SynthesisFailed(_Message, frozen=True):
    """A text could not be synthesized; the process goes on."""

    id: int
    message: str


VoiceCommand = StartVoice | Synthesize | StopSynthesis
VoiceEvent = VoiceReady | VoiceFailed | SynthesizedAudio | SynthesisDone | SynthesisFailed

command_decoder: msgpack.Decoder[VoiceCommand] = msgpack.Decoder(VoiceCommand)
event_decoder: msgpack.Decoder[VoiceEvent] = msgpack.Decoder(VoiceEvent)
