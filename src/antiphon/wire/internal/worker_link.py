"""
What a server and its workers say to each other: typed frames, each behind its length, over one connection.

A worker is an engine in a process of its own. For a child of the server the connection is a socket pair, for a worker on another machine a
WebSocket, whose messages carry the same bytes. Whatever frame can't be read ends the link: nothing here is guessed.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct, msgpack

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationKind, ConversationSettings
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.wire.codec.length_prefix import FRAME_LIMIT_BYTES, add_length_prefix

VERSION = 3
"""Of these frames; both ends must have the same."""

PATH = "/v1/workers/join"
"""Where workers on other machines join a server."""

VERSION_HEADER = "antiphon-link"
"""Of the handshake: the version. One that differs may have another `Hello`, too, so it is told before there is any frame."""

CONVERSATION_KINDS: tuple[ConversationKind, ...] = ("responses", "realtime", "chat", "audio", "video")


class _Frame(Struct, frozen=True, tag=True, array_like=True):
    pass


class Failure(Struct, frozen=True, array_like=True):
    """A fault, as it travels."""

    message: str
    code: str | None
    param: str | None
    status: int
    type: str
    retry_after_s: float | None

    @classmethod
    def from_error(cls, fault: ApiError) -> "Failure":
        """The fault, packed."""
        return cls(fault.message, fault.code, fault.param, fault.status, fault.type, fault.retry_after_s)

    def to_error(self) -> ApiError:
        """The fault, unpacked: the client's by its status, or ours."""
        kind = ClientError if self.status < 500 else ServerError
        return kind(self.message, code=self.code, param=self.param, status=self.status, type=self.type, retry_after_s=self.retry_after_s)


# To a worker, and from it


class Heartbeat(_Frame, frozen=True):
    """Whoever sends it is there."""


class Drain(_Frame, frozen=True):
    """No more conversations: the server's operator wants it so; or the worker takes none and ends when it has none."""


# To a worker


class BuildEngine(_Frame, frozen=True):
    """
    To a child that has just begun: what it is to be.

    Attributes:
        module: of the engine.
        model: as configured, with its options.
        base: the folder that relative paths in the options start from.
        weights: the folder of verified model files.
        secrets: values of the environment variables that the options name.
    """

    module: str
    model: str
    options: dict[str, Any]
    base: str
    weights: str
    secrets: dict[str, str]


class JoinAccepted(_Frame, frozen=True):
    """The worker is one of the server's now; `id` is what the operator sees it by."""

    id: str


class JoinRefused(_Frame, frozen=True):
    """The worker can't be one of the server's; the link ends."""

    message: str


class Undrain(_Frame, frozen=True):
    """The server's operator wants the worker to take conversations again."""


class WorkerDismissed(_Frame, frozen=True):
    """The server's operator has removed the worker: it is to go when it has no conversations."""


class OpenConversation(_Frame, frozen=True):
    """Begin a conversation; `number` has not been used on this link before."""

    number: int
    settings: ConversationSettings


class EngineCommands(_Frame, frozen=True):
    """Words to the engine, in their order."""

    number: int
    words: tuple[commands.EngineCommand, ...]


class PauseConversation(_Frame, frozen=True):
    """The client is behind."""

    number: int


class ResumeConversation(_Frame, frozen=True):
    """The client has caught up."""

    number: int


class CloseConversation(_Frame, frozen=True):
    """The conversation is over; `ConversationClosed` is the answer."""

    number: int


class CountRequest(_Frame, frozen=True):
    """A question: how many tokens is this?"""

    number: int
    ask: commands.Respond


class ProbeRequest(_Frame, frozen=True):
    """A question: is the engine well?"""

    number: int


ToWorker = (
    Heartbeat
    | BuildEngine
    | JoinAccepted
    | JoinRefused
    | Drain
    | Undrain
    | WorkerDismissed
    | OpenConversation
    | EngineCommands
    | PauseConversation
    | ResumeConversation
    | CloseConversation
    | CountRequest
    | ProbeRequest
)


# From a worker


class Hello(_Frame, frozen=True):
    """
    The worker can answer.

    Attributes:
        model: as the server has it configured.
        kinds: of conversations that it takes.
        slots: how many at the same time; None for as many as come.
        name: of the machine, for the operator.
        program: the version of antiphon there, for the operator.
        is_draining: whether it takes no conversations: it was drained before its link was lost.
    """

    version: int
    abilities: Capabilities
    model: Annotated[str, Meta(max_length=256)] = ""
    kinds: tuple[ConversationKind, ...] = CONVERSATION_KINDS
    slots: Annotated[int, Meta(ge=1)] | None = None
    name: Annotated[str, Meta(max_length=256)] = ""
    program: Annotated[str, Meta(max_length=64)] = ""
    is_draining: bool = False


class ChildNotice(_Frame, frozen=True):
    """From a child: a line for the operator."""

    line: str


class EngineBuildFailed(_Frame, frozen=True):
    """From a child: it can't answer, and ends."""

    failure: Failure


class ConversationOpened(_Frame, frozen=True):
    """The conversation has begun."""

    number: int


class EngineEvents(_Frame, frozen=True):
    """Words that came from the engine together."""

    number: int
    words: tuple[events.EngineEvent, ...]


class ConversationFailed(_Frame, frozen=True):
    """The conversation could not begin, or broke off."""

    number: int
    failure: Failure


class ConversationClosed(_Frame, frozen=True):
    """The last of a conversation: the engine has left it, and its place is free."""

    number: int


class RequestAnswered(_Frame, frozen=True):
    """The answer to a question: a failure, or the tokens where those were asked for."""

    number: int
    tokens: int = 0
    failure: Failure | None = None


FromWorker = (
    Heartbeat
    | Hello
    | Drain
    | ChildNotice
    | EngineBuildFailed
    | ConversationOpened
    | EngineEvents
    | ConversationFailed
    | ConversationClosed
    | RequestAnswered
)

to_worker_decoder: msgpack.Decoder[ToWorker] = msgpack.Decoder(ToWorker)
from_worker_decoder: msgpack.Decoder[FromWorker] = msgpack.Decoder(FromWorker)

_encoder = msgpack.Encoder()


class UnsendableFrame(ValueError):
    """What was to be sent can't be."""


def pack_frame(frame: ToWorker | FromWorker) -> bytes:
    """
    The frame behind its length.

    Raises:
        Unsendable: it is too long, or has something in it that no frame can carry.
    """
    try:
        packed = _encoder.encode(frame)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:  # a number of 70 bits, half a character
        raise UnsendableFrame(f"it has something in it that can't be sent to another process ({error})") from None
    if len(packed) > FRAME_LIMIT_BYTES:
        raise UnsendableFrame(f"it has {len(packed)} bytes, and another process is sent {FRAME_LIMIT_BYTES} at most")
    return add_length_prefix(packed)
