"""
The link between a server and its workers: typed frames, each with its length in front, over one connection.

A worker is an engine in a process of its own. A child process of the server has a socket pair as connection, a worker
on another machine a WebSocket, whose messages carry the same bytes. A frame that can't be decoded ends the link:
nothing is guessed.

The name of a frame's class is its tag, so renaming one changes the protocol and needs a new `VERSION`.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct, msgpack

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import ConversationKind, ConversationSettings
from antiphon.wire.internal.failure import Failure as Failure

VERSION = 5
"""Version of these frames; both ends must have the same."""

PATH = "/v1/workers/join"
"""The route at which workers on other machines join a server."""

VERSION_HEADER = "antiphon-link"
"""
Header of the handshake with the version: another version may have another `Hello`, so it is checked before any frame.
"""

CONVERSATION_KINDS: tuple[ConversationKind, ...] = ("responses", "realtime", "chat", "audio", "video")


class _Frame(Struct, frozen=True, tag=True, array_like=True):
    pass


# In both directions


class Heartbeat(_Frame, frozen=True):
    """The sender is alive."""


class Drain(_Frame, frozen=True):
    """
    To a worker: the operator wants no more conversations there. From a worker: it takes none, and exits after its last.
    """


# To a worker


class BuildEngine(_Frame, frozen=True):
    """
    To a new child process: the engine to build.

    Attributes:
        module: of the engine.
        model: as configured, with its options.
        base: the folder for relative paths in the options.
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
    """The worker has joined; `id` is shown to operators."""

    id: str


class JoinRefused(_Frame, frozen=True):
    """The worker can't join; the link ends."""

    message: str


class Undrain(_Frame, frozen=True):
    """The operator wants the worker to take conversations again."""


class WorkerDismissed(_Frame, frozen=True):
    """The operator removed the worker: it leaves when it has no conversations."""


class OpenConversation(_Frame, frozen=True):
    """Open a conversation; `number` was not used on this link before."""

    number: int
    settings: ConversationSettings


class EngineCommands(_Frame, frozen=True):
    """Commands to the engine, in order."""

    number: int
    batch: tuple[commands.EngineCommand, ...]


class PauseConversation(_Frame, frozen=True):
    """The client is behind: the engine should pause."""

    number: int


class ResumeConversation(_Frame, frozen=True):
    """The client has caught up: the engine should go on."""

    number: int


class CloseConversation(_Frame, frozen=True):
    """Leave the conversation; answered by `ConversationClosed`."""

    number: int


class CountRequest(_Frame, frozen=True):
    """How many input tokens does this request have? Answered by `RequestAnswered`."""

    number: int
    request: commands.Respond


class ProbeRequest(_Frame, frozen=True):
    """Is the engine well? Answered by `RequestAnswered`."""

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
    The worker is ready.

    Attributes:
        model: as configured at the server.
        kinds: of conversation that it takes.
        slots: conversations at the same time; None for no limit.
        name: of the machine, for operators.
        program: the version of antiphon there, for operators.
        is_draining: whether it takes no conversations because it was drained before it lost its last link.
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
    """From a child process: a line for the operator."""

    line: str


class EngineBuildFailed(_Frame, frozen=True):
    """From a child process: its engine could not be built; the process ends."""

    failure: Failure


class ConversationOpened(_Frame, frozen=True):
    """The conversation is open."""

    number: int


class EngineEvents(_Frame, frozen=True):
    """Events that the engine delivered together."""

    number: int
    batch: tuple[events.EngineEvent, ...]


class ConversationFailed(_Frame, frozen=True):
    """The conversation could not be opened, or broke off."""

    number: int
    failure: Failure


class ConversationClosed(_Frame, frozen=True):
    """The last frame of a conversation: the engine has left it, and its slot is free."""

    number: int


class RequestAnswered(_Frame, frozen=True):
    """The answer to a request: a failure, or the tokens for a `CountRequest`."""

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
