"""
The turns of a history as items of a Realtime conversation, and what tells one from another.
"""

import base64
import binascii
import io
import wave
from collections.abc import Callable, Hashable
from typing import Any

from antiphon.audio import SAMPLE_BYTES
from antiphon.engine_api import history as turns
from antiphon.engines.chat.request import flat_name
from antiphon.errors import ClientMistake
from antiphon.wire.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Part,
)

SPARE_BYTES = 256
"""How much of the beginning and the end of a sound, besides its length, tells it from any other."""

Likeness = Hashable
"""What two turns have in common that would be the same item; None for a turn that is no item."""

Encode = Callable[[bytes, int], bytes]
"""Sound (s16le, and its rate) as the upstream takes it."""


def likeness(turn: turns.Turn) -> Likeness:
    """What tells `turn` from others. Sound that was heard live is known by its turn alone, whatever is known of its words by now."""
    match turn:
        case turns.Message(role, parts):
            return _party(role), tuple(_part_likeness(part) for part in parts)
        case turns.ToolCall(call_id, name, arguments, _, namespace):
            return call_likeness(call_id, flat_name(name, namespace), arguments)
        case turns.ToolResult(call_id, parts):
            return "result", call_id, _words(parts)
        case _:
            return None


def heard_likeness(turn_id: str) -> Likeness:
    """That of the turn that was heard live under this id."""
    return "user", (("turn", turn_id),)


def answer_likeness(texts: tuple[str, ...]) -> Likeness:
    """That of the model's own words, a text for each part that has any."""
    return "assistant", texts


def call_likeness(call_id: str, name: str, arguments: str) -> Likeness:
    """That of a call."""
    return "call", call_id, name, arguments


def item_of(turn: turns.Turn, item_id: str, encode: Encode) -> Item:
    """
    The item, to be called `item_id`, for a turn that has a likeness.

    Raises:
        ClientMistake: there is no such item.
    """
    match turn:
        case turns.Message(role, parts):
            write = _write_answer if role == "assistant" else _write_input
            return MessageItem(id=item_id, role=_party(role), content=[write(part, encode) for part in parts])
        case turns.ToolCall(call_id, name, arguments, _, namespace):
            return FunctionCallItem(id=item_id, call_id=call_id, name=flat_name(name, namespace), arguments=arguments)
        case turns.ToolResult(call_id, parts):
            return FunctionCallOutputItem(id=item_id, call_id=call_id, output=_words(parts))
        case _:
            raise _no_place(type(turn).__name__)


def _party(role: turns.Role) -> Any:
    return "system" if role == "developer" else role


def _part_likeness(part: turns.Part) -> Hashable:
    match part:
        case turns.TextPart(text) | turns.RefusalPart(text):
            return text
        case turns.SpeechPart(turn_id=str(turn_id)):
            return "turn", turn_id
        case turns.SpeechPart(pcm):
            return "sound", len(pcm), pcm[:SPARE_BYTES], pcm[-SPARE_BYTES:]
        case _:
            return part


def _words(parts: tuple[turns.Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, turns.TextPart | turns.RefusalPart))


def _write_answer(part: turns.Part, _encode: Encode) -> Part:
    match part:
        case turns.TextPart(text) | turns.RefusalPart(text):
            return OutputText(text=text)
        case turns.SpeechPart(transcript=transcript):
            return OutputText(text=transcript or "")  # no server takes the model's own sound back
        case _:
            raise _no_place(type(part).__name__)


def _write_input(part: turns.Part, encode: Encode) -> Part:
    match part:
        case turns.TextPart(text) | turns.RefusalPart(text):
            return InputText(text=text)
        case turns.SpeechPart(pcm, rate_hz) if pcm:
            return InputAudio(audio=encode(pcm, rate_hz))
        case turns.SpeechPart(transcript=transcript):
            return InputText(text=transcript or "")
        case turns.AudioPart(inline, format):
            return InputAudio(audio=encode(*_recorded(inline, format)))
        case turns.ImagePart(url=str(url)) if not url.startswith("data:"):
            # The upstream stands in its operator's network, and must not fetch from there whatever a client names.
            raise ClientMistake("This model takes pictures as data URLs only.", code="invalid_value", param="input")
        case turns.ImagePart(url=str(url), detail=detail):
            return InputImage(image_url=url, detail="low" if detail == "low" else "high" if detail == "high" else "auto")
        case _:
            raise _no_place(type(part).__name__)


def _recorded(inline: str, format: str) -> tuple[bytes, int]:
    """Samples and rate of a recording."""
    try:
        with wave.open(io.BytesIO(base64.b64decode(inline, validate=True))) as file:
            if format == "wav" and file.getnchannels() == 1 and file.getsampwidth() == SAMPLE_BYTES:
                return file.readframes(file.getnframes()), file.getframerate()
    except (binascii.Error, wave.Error, EOFError):
        pass
    raise ClientMistake(
        f"Invalid audio: this model takes recordings as WAV, mono, 16 bits a sample, but got '{format}'.",
        code="invalid_value",
        param="input",
    )


def _no_place(kind: str) -> ClientMistake:
    return ClientMistake(f"This model takes no input of that kind ({kind}).", code="unsupported_content_type", param="input")
