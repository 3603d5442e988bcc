"""
A MiniCPM-o client's events in the shape of the wire again: the decoder changes their shape, and a replay sends them as
they came.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from antiphon.engine_api import history
from antiphon.wire.minicpmo.client_events import ChatAppend, DuplexAppend, SessionClose, SessionInit


class AudioAttachment(NamedTuple):
    """Audio that is not the session's own stream: a reference voice, or a part of a question; s16le."""

    pcm: bytes
    rate_hz: int


class JpegImage(NamedTuple):
    """A video frame, as a JPEG file."""

    jpeg: bytes


_REFERENCE_HZ = 16_000


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _attachment(pcm: bytes | None) -> AudioAttachment | None:
    return AudioAttachment(pcm, _REFERENCE_HZ) if pcm is not None else None


def _encode_init(event: SessionInit) -> dict[str, Any]:
    voice = _without_none(ref_audio_base64=_attachment(event.reference), tts_ref_audio_base64=_attachment(event.voice_reference))
    payload = _without_none(
        system_prompt=event.instructions, config=event.options or None, max_slice_nums=event.slices, voice=voice or None
    )
    return {"type": "session.init", "payload": payload | ({} if event.speaks else {"use_tts": False})}


def _encode_append(event: DuplexAppend) -> dict[str, Any]:
    slices = [frame.slices for frame in event.frames]
    content = _without_none(
        audio=event.pcm,
        video_frames=[JpegImage(frame.jpeg) for frame in event.frames] or None,
        max_slice_nums=slices if any(slices) else None,
        force_listen=event.force_listen or None,
        input_id=event.input_id,
        response_id=event.response_id,
    )
    return {"type": "input.append", "input": content}


def _encode_chat(event: ChatAppend) -> dict[str, Any]:
    content = _without_none(
        messages=[
            {"role": message.role, "content": [_PART_ENCODERS[type(part)](part) for part in message.parts]} for message in event.messages
        ],
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


_PART_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    history.TextPart: lambda part: {"type": "text", "text": part.text},
    history.ImagePart: lambda part: {"type": "image_url", "image_url": {"url": part.url}},
    history.AudioPart: lambda part: {"type": "input_audio", "input_audio": {"data": part.inline, "format": part.format}},
    history.SpeechPart: lambda part: {"type": "audio", "data": AudioAttachment(part.pcm, part.rate_hz)},
    history.VideoPart: lambda part: {"type": "video", "data": part.inline, "stack_frames": part.pictures_at_once},
}

EVENT_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    SessionInit: _encode_init,
    DuplexAppend: _encode_append,
    ChatAppend: _encode_chat,
    SessionClose: lambda event: {"type": "session.close", **_without_none(reason=event.reason)},
}
"""By type of event: its shape on the wire, with audio and images as bytes."""
