"""What the server and a process of functions say to each other, as frames of `antiphon.framing`."""

from typing import Any

from msgspec import Struct, msgpack


class _Message(Struct, frozen=True, tag=True):
    pass


# To the process


class LoadFunctions(_Message, frozen=True, kw_only=True):
    """
    The first message: where the functions are, a file or an entry point.

    Attributes:
        memory_bytes: that a call may take beyond what the loaded functions have.
        output_chars: of a result; the rest is left out.
    """

    file: str | None = None
    entry_point: str | None = None
    memory_bytes: int
    output_chars: int


class CallFunction(_Message, frozen=True):
    """A call; `arguments` is a JSON object."""

    id: int
    name: str
    arguments: bytes


class CancelCall(_Message, frozen=True):
    """End a call now. It is answered like any other."""

    id: int


ToProcess = CallFunction | CancelCall | LoadFunctions


# From the process


class LoadedFunction(_Message, frozen=True):
    """A function that can be called; `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class FunctionsLoaded(_Message, frozen=True):
    """The functions are loaded, and can be called."""

    functions: tuple[LoadedFunction, ...]


class LoadFailed(_Message, frozen=True):
    """The functions can't be loaded; the reason is for the operator."""

    reason: str


class CallAnswered(_Message, frozen=True):
    """
    A call is over, and its process with it.

    Attributes:
        text: for the model.
        detail: for the operator; empty where there is nothing to say.
    """

    id: int
    text: str
    is_error: bool = False
    detail: str = ""


FromProcess = CallAnswered | FunctionsLoaded | LoadFailed

TO_PROCESS: msgpack.Decoder[ToProcess] = msgpack.Decoder(ToProcess)
FROM_PROCESS: msgpack.Decoder[FromProcess] = msgpack.Decoder(FromProcess)
