"""Requests in the shapes of a MiniCPM-o worker."""

import asyncio
import binascii
from collections.abc import Sequence
from typing import Any, Literal

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.engine import Fetch
from antiphon.engines.chat.media import inline_media
from antiphon.errors import ClientError
from antiphon.speech.audio_files.decode import AudioFileReader
from antiphon.speech.dsp.resample import resample
from antiphon.wire.minicpmo.media import to_floats
from antiphon.wire.upstream import minicpmo_backend

UNKNOWN_SPEECH_TEXT = "(This was said aloud, and its words are not known.)"

MAX_RECORDING_S = 10 * 60
"""The longest recording: the model has room for 8,192 tokens."""

_ROLES: dict[engine_history.Role, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}

SESSION_CONFIG_KEYS = frozenset(
    {
        *("generate_audio", "ls_mode", "force_listen_count", "max_new_speak_tokens_per_chunk", "decode_mode"),
        *("temperature", "top_k", "top_p", "text_repetition_penalty", "text_repetition_window_size", "length_penalty"),
        *("listen_prob_scale", "listen_top_k", "tts_temperature", "max_tokens", "max_kv_tokens", "tts_enabled", "vision_hd"),
    }
)
"""Settings of a full-duplex session that a client may set; chunk lengths and sample rates are not among them."""


def build_session_payload(command: commands.StartDuplex) -> minicpmo_backend.SessionPayload:
    """The `session.init` payload for a full-duplex session."""
    config = {name: value for name, value in command.options.items() if name in SESSION_CONFIG_KEYS}
    if command.voice is None:
        config["generate_audio"] = False
    return minicpmo_backend.SessionPayload(
        mode="full_duplex",
        use_tts=command.voice is not None,
        system_prompt=command.instructions,
        config=config,
        voice=_voice_references(command),
    )


def _voice_references(command: commands.StartDuplex) -> minicpmo_backend.VoiceReferences | None:
    voice_reference = command.voice.reference if command.voice is not None else None
    if command.reference_audio is None and voice_reference is None:
        return None
    return minicpmo_backend.VoiceReferences(
        ref_audio_base64=to_floats(command.reference_audio) if command.reference_audio is not None else None,
        tts_ref_audio_base64=to_floats(voice_reference) if voice_reference is not None else None,
    )


async def build_chat_input(request: commands.Respond, fetch: Fetch) -> minicpmo_backend.ChatInput:
    """
    The request as a question to the model.

    Raises:
        ApiError: the request has content that the model can't take.
    """
    request = await inline_media(request, fetch, pass_image_urls=False, supports_files=False)
    messages = [minicpmo_backend.Message(role="system", content=request.instructions)] if request.instructions else []
    for item in request.history:
        if (message := await _to_message(item)) is not None:
            messages.append(message)
    extra, voice = request.sampling.extra, request.voice
    penalty = extra.get("length_penalty")
    return minicpmo_backend.ChatInput(
        messages=messages,
        streaming=True,
        input_id=request.id,
        generation=minicpmo_backend.Generation(
            max_new_tokens=request.sampling.max_tokens, length_penalty=float(penalty) if isinstance(penalty, int | float) else None
        ),
        tts=minicpmo_backend.TtsOptions(
            enabled=voice is not None,
            ref_audio_data=to_floats(voice.reference) if voice is not None and voice.reference is not None else None,
        ),
        image=minicpmo_backend.ImageOptions(max_slice_nums=_max_slices(extra)),
        use_tts_template=voice is not None,
        omni_mode=bool(extra.get("omni_mode")) or _has_part(request.history, engine_history.VideoPart),
        enable_thinking=bool(extra.get("enable_thinking")),
    )


def _max_slices(extra: dict[str, Any]) -> int:
    count = extra.get("max_slice_nums")
    return count if isinstance(count, int) and 1 <= count <= 9 else 1


def _has_part(history: Sequence[engine_history.HistoryItem], part_type: type[engine_history.HistoryPart]) -> bool:
    return any(isinstance(part, part_type) for item in history if isinstance(item, engine_history.Message) for part in item.parts)


async def _to_message(item: engine_history.HistoryItem) -> minicpmo_backend.Message | None:
    match item:
        case engine_history.Message(role=role, parts=parts):
            contents = [await _to_content(part) for part in parts]
        case engine_history.ToolResult(parts=parts):  # of another model's call: this model has no tools
            role, contents = "user", [await _to_content(part) for part in parts]
        case engine_history.ReasoningItem() | engine_history.ToolCall() | engine_history.HostedToolItem():
            return None
    if not contents:
        return None
    match contents:
        case [minicpmo_backend.Text(text=text)]:
            return minicpmo_backend.Message(role=_ROLES[role], content=text)
        case _:
            return minicpmo_backend.Message(role=_ROLES[role], content=contents)


async def _to_content(part: engine_history.HistoryPart) -> minicpmo_backend.Content:
    match part:
        case engine_history.TextPart(text) | engine_history.RefusalPart(text):
            return minicpmo_backend.Text(text=text)
        case engine_history.ImagePart(url=str(url)) if url[:5].lower() == "data:":
            return minicpmo_backend.Image(data=url.partition(",")[2])
        case engine_history.AudioPart(inline):
            return minicpmo_backend.Audio(data=to_floats(await asyncio.to_thread(_decode_recording, inline)))
        case engine_history.SpeechPart(pcm, rate_hz):
            if not pcm:
                return minicpmo_backend.Text(text=part.transcript or UNKNOWN_SPEECH_TEXT)
            return minicpmo_backend.Audio(data=to_floats(await asyncio.to_thread(resample, pcm, rate_hz, minicpmo_backend.INPUT_RATE_HZ)))
        case engine_history.VideoPart(inline, stack_frames):
            return minicpmo_backend.Video(data=inline, stack_frames=stack_frames)
        case engine_history.ImagePart() | engine_history.FilePart():
            raise ClientError("This model takes no files.", code="unsupported_value", param="input")


def _decode_recording(inline: str) -> bytes:
    """The samples of a recording in base64, optionally a data URL; s16le mono at `INPUT_RATE_HZ`."""
    try:
        file = binascii.a2b_base64(inline.rpartition(",")[2])
    except ValueError:
        raise ClientError("Invalid audio: expected base64.", code="invalid_value", param="input") from None
    reader, chunks = AudioFileReader(file, MAX_RECORDING_S), []
    while chunk := reader.read():
        chunks.append(chunk)
    return b"".join(chunks)
