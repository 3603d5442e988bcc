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
from antiphon.engine_api import history
from antiphon.engines.chat.request import flat_name
from antiphon.errors import ClientError
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

FINGERPRINT_BYTES = 256
"""How much of the beginning and the end of a sound, besides its length, tells it from any other."""

ItemFingerprint = Hashable
"""What two turns have in common that would be the same item; None for a turn that is no item."""

EncodeAudio = Callable[[bytes, int], bytes]
"""Sound (s16le, and its rate) as the upstream takes it."""


def fingerprint(item: history.HistoryItem) -> ItemFingerprint:
    """What tells `turn` from others. Sound that was heard live is known by its turn alone, whatever is known of its words by now."""
    match item:
        case history.Message(role, parts):
            return _wire_role(role), tuple(_part_fingerprint(part) for part in parts)
        case history.ToolCall(call_id, name, arguments, _, namespace):
            return call_fingerprint(call_id, flat_name(name, namespace), arguments)
        case history.ToolResult(call_id, parts):
            return "result", call_id, _joined_text(parts)
        case _:
            return None


def live_turn_fingerprint(turn_id: str) -> ItemFingerprint:
    """That of the turn that was heard live under this id."""
    return "user", (("turn", turn_id),)


def assistant_fingerprint(texts: tuple[str, ...]) -> ItemFingerprint:
    """That of the model's own words, a text for each part that has any."""
    return "assistant", texts


def call_fingerprint(call_id: str, name: str, arguments: str) -> ItemFingerprint:
    """That of a call."""
    return "call", call_id, name, arguments


def to_wire_item(item: history.HistoryItem, item_id: str, encode: EncodeAudio) -> Item:
    """
    The item, to be called `item_id`, for a turn that has a likeness.

    Raises:
        ClientError: there is no such item.
    """
    match item:
        case history.Message(role, parts):
            write = _assistant_part if role == "assistant" else _input_part
            return MessageItem(id=item_id, role=_wire_role(role), content=[write(part, encode) for part in parts])
        case history.ToolCall(call_id, name, arguments, _, namespace):
            return FunctionCallItem(id=item_id, call_id=call_id, name=flat_name(name, namespace), arguments=arguments)
        case history.ToolResult(call_id, parts):
            return FunctionCallOutputItem(id=item_id, call_id=call_id, output=_joined_text(parts))
        case _:
            raise _unsupported_content(type(item).__name__)


def _wire_role(role: history.Role) -> Any:
    return "system" if role == "developer" else role


def _part_fingerprint(part: history.HistoryPart) -> Hashable:
    match part:
        case history.TextPart(text) | history.RefusalPart(text):
            return text
        case history.SpeechPart(turn_id=str(turn_id)):
            return "turn", turn_id
        case history.SpeechPart(pcm):
            return "sound", len(pcm), pcm[:FINGERPRINT_BYTES], pcm[-FINGERPRINT_BYTES:]
        case _:
            return part


def _joined_text(parts: tuple[history.HistoryPart, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, history.TextPart | history.RefusalPart))


def _assistant_part(part: history.HistoryPart, _encode: EncodeAudio) -> Part:
    match part:
        case history.TextPart(text) | history.RefusalPart(text):
            return OutputText(text=text)
        case history.SpeechPart(transcript=transcript):
            return OutputText(text=transcript or "")  # no server takes the model's own sound back
        case _:
            raise _unsupported_content(type(part).__name__)


def _input_part(part: history.HistoryPart, encode: EncodeAudio) -> Part:
    match part:
        case history.TextPart(text) | history.RefusalPart(text):
            return InputText(text=text)
        case history.SpeechPart(pcm, rate_hz) if pcm:
            return InputAudio(audio=encode(pcm, rate_hz))
        case history.SpeechPart(transcript=transcript):
            return InputText(text=transcript or "")
        case history.AudioPart(inline, format):
            return InputAudio(audio=encode(*_decode_wav(inline, format)))
        case history.ImagePart(url=str(url)) if not url.startswith("data:"):
            # The upstream stands in its operator's network, and must not fetch from there whatever a client names.
            raise ClientError("This model takes pictures as data URLs only.", code="invalid_value", param="input")
        case history.ImagePart(url=str(url), detail=detail):
            return InputImage(image_url=url, detail="low" if detail == "low" else "high" if detail == "high" else "auto")
        case _:
            raise _unsupported_content(type(part).__name__)


def _decode_wav(inline: str, format: str) -> tuple[bytes, int]:
    """Samples and rate of a recording."""
    try:
        with wave.open(io.BytesIO(base64.b64decode(inline, validate=True))) as file:
            if format == "wav" and file.getnchannels() == 1 and file.getsampwidth() == SAMPLE_BYTES:
                return file.readframes(file.getnframes()), file.getframerate()
    except (binascii.Error, wave.Error, EOFError):
        pass
    raise ClientError(
        f"Invalid audio: this model takes recordings as WAV, mono, 16 bits a sample, but got '{format}'.",
        code="invalid_value",
        param="input",
    )


def _unsupported_content(kind: str) -> ClientError:
    return ClientError(f"This model takes no input of that kind ({kind}).", code="unsupported_content_type", param="input")
