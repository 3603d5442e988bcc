"""
A MiniCPM-o client's events in the shape of the wire again: the decoder changes their shape, and a replay sends them as
they came.
"""

import base64
import re
from typing import Literal, NamedTuple, cast

from antiphon.engine_api import history
from antiphon.wire.minicpmo.client_events import ChatAppend, ClientEvent, DuplexAppend, SessionClose, SessionInit

ImageForm = Literal["jpeg", "png", "gif", "webp"]


class AudioAttachment(NamedTuple):
    """Audio that is not the session's own stream: a reference voice, or a part of a question; s16le, and float32 on the wire."""

    pcm: bytes
    rate_hz: int


class ImageFile(NamedTuple):
    """A video frame, or a picture in a message; `form` is the format of the file."""

    content: bytes
    form: ImageForm = "jpeg"


_REFERENCE_HZ = 16_000
_DATA_URL = re.compile(r"data:image/(jpeg|png|gif|webp);base64,")


def _without_none(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _attachment(pcm: bytes | None) -> AudioAttachment | None:
    return AudioAttachment(pcm, _REFERENCE_HZ) if pcm is not None else None


def _encode_init(event: SessionInit) -> dict[str, object]:
    voice = _without_none(ref_audio_base64=_attachment(event.reference), tts_ref_audio_base64=_attachment(event.voice_reference))
    payload = _without_none(
        system_prompt=event.instructions, config=event.options or None, max_slice_nums=event.slices, voice=voice or None
    )
    return {"type": "session.init", "payload": payload | ({} if event.speaks else {"use_tts": False})}


def _encode_append(event: DuplexAppend) -> dict[str, object]:
    slices = [frame.slices for frame in event.frames]
    content = _without_none(
        audio=event.pcm,
        video_frames=[ImageFile(frame.jpeg) for frame in event.frames] or None,
        max_slice_nums=slices if any(slices) else None,
        force_listen=event.force_listen or None,
        input_id=event.input_id,
        response_id=event.response_id,
    )
    return {"type": "input.append", "input": content}


def _encode_chat(event: ChatAppend) -> dict[str, object]:
    content = _without_none(
        messages=[{"role": message.role, "content": [_encode_part(part) for part in message.parts]} for message in event.messages],
        streaming=event.streaming,
        generation=_without_none(max_new_tokens=event.max_tokens, length_penalty=event.length_penalty),
        image=_without_none(max_slice_nums=event.slices) or None,
        tts=_without_none(enabled=event.speaks, ref_audio_data=_attachment(event.voice_reference)),
        omni_mode=event.is_omni,
        enable_thinking=event.thinks,
        input_id=event.input_id,
        response_id=event.response_id,
    )
    return {"type": "input.append", "input": content}


def _encode_part(part: history.HistoryPart) -> dict[str, object]:
    match part:
        case history.TextPart(text=text):
            return {"type": "text", "text": text}
        case history.ImagePart(url=url):
            return _encode_image(url or "")
        case history.AudioPart(inline=inline, format=format):
            return {"type": "input_audio", "input_audio": {"data": inline, "format": format}}
        case history.SpeechPart(pcm=pcm, rate_hz=rate_hz):
            return {"type": "audio", "data": AudioAttachment(pcm, rate_hz)}
        case history.VideoPart(inline=inline, pictures_at_once=pictures_at_once):
            return {"type": "video", "data": inline, "stack_frames": pictures_at_once}
        case history.RefusalPart() | history.FilePart():
            raise TypeError(f"MiniCPM-o has no {type(part).__name__}.")


def _encode_image(url: str) -> dict[str, object]:
    match = _DATA_URL.match(url)
    if match is None:
        return {"type": "image_url", "image_url": {"url": url}}
    # The decoder makes such a URL of every picture that a client sends, under whichever name it did.
    return {"type": "image", "data": ImageFile(base64.b64decode(url[match.end() :]), cast(ImageForm, match[1]))}


def encode_event(event: ClientEvent) -> dict[str, object]:
    """A client's event in its shape on the wire, with audio and images as bytes."""
    match event:
        case SessionInit():
            return _encode_init(event)
        case DuplexAppend():
            return _encode_append(event)
        case ChatAppend():
            return _encode_chat(event)
        case SessionClose(reason=reason):
            return {"type": "session.close", **_without_none(reason=reason)}
