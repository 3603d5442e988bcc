"""The items of a history as items of a Realtime conversation, and fingerprints that tell them apart."""

import base64
import io
import wave
from collections.abc import Callable, Hashable
from typing import Literal

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
"""Bytes of the beginning and the end of audio that identify it, together with its length."""

ItemFingerprint = Hashable
"""Equal for history items that are the same Realtime item; None for one that has no Realtime item."""

EncodeAudio = Callable[[bytes, int], bytes]
"""Encodes audio (s16le, and its sample rate) for the server."""


def fingerprint(item: history.HistoryItem) -> ItemFingerprint:
    """The fingerprint of an item. Live audio is identified by its turn id alone: its transcript may arrive later."""
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
    """The fingerprint of the live turn with this id."""
    return "user", (("turn", turn_id),)


def assistant_fingerprint(texts: tuple[str, ...]) -> ItemFingerprint:
    """The fingerprint of the model's message; `texts` are those of its parts that have any."""
    return "assistant", texts


def call_fingerprint(call_id: str, name: str, arguments: str) -> ItemFingerprint:
    """The fingerprint of a function call."""
    return "call", call_id, name, arguments


def to_wire_item(item: history.HistoryItem, item_id: str, encode: EncodeAudio) -> Item:
    """
    The Realtime item, with this id, for a history item that has a fingerprint.

    Raises:
        ClientError: its content has no form in the Realtime API.
    """
    match item:
        case history.Message(role, parts):
            write_part = _assistant_part if role == "assistant" else _input_part
            return MessageItem(id=item_id, role=_wire_role(role), content=[write_part(part, encode) for part in parts])
        case history.ToolCall(call_id, name, arguments, _, namespace):
            return FunctionCallItem(id=item_id, call_id=call_id, name=flat_name(name, namespace), arguments=arguments)
        case history.ToolResult(call_id, parts):
            return FunctionCallOutputItem(id=item_id, call_id=call_id, output=_joined_text(parts))
        case _:
            raise _unsupported_content(type(item).__name__)


def _wire_role(role: history.Role) -> Literal["system", "user", "assistant"]:
    # The Realtime API has no role `developer`.
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
            return OutputText(text=transcript or "")  # no server takes the model's audio back
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
            # The server stands in its operator's network: it must not fetch from there what a client names.
            raise ClientError("This model takes images as data URLs only.", code="invalid_value", param="input")
        case history.ImagePart(url=str(url), detail=detail):
            return InputImage(image_url=url, detail="low" if detail == "low" else "high" if detail == "high" else "auto")
        case _:
            raise _unsupported_content(type(part).__name__)


def _decode_wav(inline: str, format: str) -> tuple[bytes, int]:
    """The samples and the sample rate of a recording."""
    try:
        with wave.open(io.BytesIO(base64.b64decode(inline, validate=True))) as file:
            if format == "wav" and file.getnchannels() == 1 and file.getsampwidth() == SAMPLE_BYTES:
                return file.readframes(file.getnframes()), file.getframerate()
    except (ValueError, wave.Error, EOFError):  # base64 that is not ASCII is no `binascii.Error`
        pass
    raise ClientError(
        f"Invalid audio: this model takes audio as mono 16-bit WAV, but got '{format}'.",
        code="invalid_value",
        param="input",
    )


def _unsupported_content(kind: str) -> ClientError:
    return ClientError(f"This model does not take input of the kind {kind}.", code="unsupported_content_type", param="input")
