"""One call of a function, in a process of its own: its answer, and what the model reads if it fails."""

import asyncio
import inspect
import mmap
import re
import resource
import traceback
from collections.abc import Awaitable
from pathlib import Path

import msgspec

from antiphon.tools.functions.messages import CallAnswered, CallFunction
from antiphon.tools.functions.signature import ToolFunction

MAX_DETAIL_CHARS = 4000
"""The most of a traceback that goes to the log; its end, which has the error."""

MAX_ERROR_CHARS = 1000
"""The most of an error's own text that the model reads."""

_RESERVE_BYTES = 8 << 20
"""Memory that is kept back and released when a function has used up the rest: the answer that says so needs some."""

_PATH = re.compile(r"file:\S+|(?<![\w/:.~])~?(?:/[^\s/'\"(){}\[\]<>:,;]+)+/?")
_FIELD = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def answer_call(call: CallFunction, function: ToolFunction, output_chars: int, memory_bytes: int) -> CallAnswered:
    """
    Call a function.

    Args:
        output_chars: of its result; the rest is left out.
        memory_bytes: that it may take, for the error when it takes more.
    """
    try:
        arguments = function.read(call.arguments)
    except msgspec.ValidationError as error:
        return CallAnswered(call.id, f"The arguments are wrong: {_describe_mistake(error)}.", is_error=True)
    except Exception as error:
        return _failure(call, function, error)
    reserve = mmap.mmap(-1, _RESERVE_BYTES)
    try:
        value = function.call(arguments)
        # The conversion belongs to the call: it may fail, or need the memory that the function has used up.
        text = to_text(asyncio.run(_finish(value)) if inspect.isawaitable(value) else value)
    except MemoryError:
        # First of all: even formatting the message needs memory.
        reserve.close()
        limit = f"{memory_bytes >> 20} MiB (tools.functions.memory_mib)"
        return CallAnswered(call.id, f"The function needed more memory than {limit}.", is_error=True)
    except BaseException as error:  # `sys.exit` too: it ends this call's process, and no other
        return _failure(call, function, error)
    if (rest := len(text) - output_chars) > 0:
        text = f"{text[:output_chars]}\n[{rest} more characters were left out (tools.functions.output_chars).]"
    return CallAnswered(call.id, text)


def limit_memory(extra_bytes: int) -> None:
    """Let this process take so much more memory than it has; on Linux only, as others don't say how much that is."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return
    # RLIMIT_AS counts addresses and not memory in use, and loaded libraries have many of them already.
    limit = pages * resource.getpagesize() + extra_bytes + _RESERVE_BYTES
    hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard_limit == resource.RLIM_INFINITY or limit <= hard_limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def to_text(value: object) -> str:
    """
    Convert what a function returned for the model: text stays as it is, all else becomes JSON.

    Raises:
        ValueError: it has no JSON.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # A lone surrogate can't be encoded as UTF-8.
    return msgspec.json.encode(value, enc_hook=_to_plain).decode()


def mask_paths(text: str) -> str:
    """Replace the paths of files in a text, which tell of this machine; URLs stay."""
    return _PATH.sub("[path]", text)


async def _finish(value: Awaitable[object]) -> object:
    return await value


def _to_plain(value: object) -> object:
    if callable(dump := getattr(value, "model_dump", None)):  # of pydantic
        return dump(mode="json")
    if callable(item := getattr(value, "item", None)):  # of numpy's numbers
        return item()
    raise ValueError(f"it returned a value of the type {type(value).__name__}, which has no JSON")


def _describe_mistake(error: msgspec.ValidationError) -> str:
    text = str(error)
    match = _FIELD.search(text)
    return text if match is None else f"{text[: match.start()]}, at '{match[1]}'"


def _failure(call: CallFunction, function: ToolFunction, error: BaseException) -> CallAnswered:
    """
    What the model gets to know of an error: its text if it is about values, or of a class of the operator's own; of any
    other its class alone, as texts of libraries name addresses, users and files.
    """
    kind = type(error)
    is_told = isinstance(error, ValueError | LookupError) or kind.__module__ == function.module
    reason = f"{kind.__name__}: {mask_paths(str(error)[:MAX_ERROR_CHARS])}" if is_told and str(error) else kind.__name__
    # A text for the model may have values of the conversation in it, which don't belong in a log.
    lines = [*traceback.format_tb(error.__traceback__), kind.__name__] if is_told else traceback.format_exception(error)
    detail = "".join(lines)[-MAX_DETAIL_CHARS:]
    return CallAnswered(call.id, f"The function failed: {reason}", is_error=True, detail=detail)
