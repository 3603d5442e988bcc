"""What was said so far, and how it is to be answered, as a MiniCPM-o worker takes it."""

import asyncio
import binascii
from collections.abc import Sequence
from typing import Any, Literal

from antiphon.engine_api import commands, history as turns
from antiphon.engine_api.engine import Fetch
from antiphon.engines.chat.media import settled
from antiphon.errors import ClientMistake
from antiphon.speech.audio_files.decode import Recording
from antiphon.speech.dsp.resample import resampled
from antiphon.wire.minicpmo.media import to_floats
from antiphon.wire.upstream import minicpmo_backend as omni

UNHEARD = "(This was said aloud, and its words are not known.)"

LONGEST_S = 10 * 60
"""Of one recording: the model has room for 8,192 tokens."""

_ROLES: dict[turns.Role, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}

CONFIG = frozenset(
    {
        *("generate_audio", "ls_mode", "force_listen_count", "max_new_speak_tokens_per_chunk", "decode_mode"),
        *("temperature", "top_k", "top_p", "text_repetition_penalty", "text_repetition_window_size", "length_penalty"),
        *("listen_prob_scale", "listen_top_k", "tts_temperature", "max_tokens", "max_kv_tokens", "tts_enabled", "vision_hd"),
    }
)
"""What a client may set of a full-duplex session. How long its pieces of sound are, and at which rate, is not for it to say."""


def opening(word: commands.Converse) -> omni.Opening:
    """How the session is to be that `word` asks for."""
    config = {name: value for name, value in word.options.items() if name in CONFIG}
    if word.voice is None:
        config["generate_audio"] = False
    return omni.Opening(
        mode="full_duplex",
        use_tts=word.voice is not None,
        system_prompt=word.instructions,
        config=config,
        voice=_references(word),
    )


def _references(word: commands.Converse) -> omni.References | None:
    spoken = word.voice.reference if word.voice is not None else None
    if word.reference is None and spoken is None:
        return None
    return omni.References(
        ref_audio_base64=to_floats(word.reference) if word.reference is not None else None,
        tts_ref_audio_base64=to_floats(spoken) if spoken is not None else None,
    )


async def question(ask: commands.Respond, fetch: Fetch) -> omni.Question:
    """
    The question that `ask` is.

    Raises:
        Fault: something in it can't be given to the model.
    """
    ask = await settled(ask, fetch, urls_pass=False, takes_files=False)
    messages = [omni.Message(role="system", content=ask.instructions)] if ask.instructions else []
    for turn in ask.history:
        if (message := await _message(turn)) is not None:
            messages.append(message)
    extra, voice = ask.sampling.extra, ask.voice
    penalty = extra.get("length_penalty")
    return omni.Question(
        messages=messages,
        streaming=True,
        input_id=ask.id,
        generation=omni.Generation(
            max_new_tokens=ask.sampling.max_tokens, length_penalty=float(penalty) if isinstance(penalty, int | float) else None
        ),
        tts=omni.Speaking(
            enabled=voice is not None,
            ref_audio_data=to_floats(voice.reference) if voice is not None and voice.reference is not None else None,
        ),
        image=omni.Pictures(max_slice_nums=_slices(extra)),
        use_tts_template=voice is not None,
        omni_mode=bool(extra.get("omni_mode")) or _has(ask.history, turns.VideoPart),
        enable_thinking=bool(extra.get("enable_thinking")),
    )


def _slices(extra: dict[str, Any]) -> int:
    given = extra.get("max_slice_nums")
    return given if isinstance(given, int) and 1 <= given <= 9 else 1


def _has(history: Sequence[turns.Turn], kind: type[turns.Part]) -> bool:
    return any(isinstance(part, kind) for turn in history if isinstance(turn, turns.Message) for part in turn.parts)


async def _message(turn: turns.Turn) -> omni.Message | None:
    match turn:
        case turns.Message(role=role, parts=parts):
            contents = [await _content(part) for part in parts]
        case turns.ToolResult(parts=parts):  # of another model's call: this one makes none
            role, contents = "user", [await _content(part) for part in parts]
        case turns.Thought() | turns.ToolCall() | turns.Hosted():
            return None
    if not contents:
        return None
    (*_, last) = contents
    is_text = len(contents) == 1 and isinstance(last, omni.Text)
    return omni.Message(role=_ROLES[role], content=last.text if is_text and isinstance(last, omni.Text) else contents)


async def _content(part: turns.Part) -> omni.Content:
    match part:
        case turns.TextPart(text) | turns.RefusalPart(text):
            return omni.Text(text=text)
        case turns.ImagePart(url=str(url)) if url[:5].lower() == "data:":
            return omni.Image(data=url.partition(",")[2])
        case turns.AudioPart(inline):
            return omni.Audio(data=to_floats(await asyncio.to_thread(_read, inline)))
        case turns.SpeechPart(pcm, rate_hz):
            if not pcm:
                return omni.Text(text=part.transcript or UNHEARD)
            return omni.Audio(data=to_floats(await asyncio.to_thread(resampled, pcm, rate_hz, omni.TO_WORKER_HZ)))
        case turns.VideoPart(inline, at_once):
            return omni.Video(data=inline, stack_frames=at_once)
        case turns.ImagePart() | turns.FilePart():
            raise ClientMistake("This model takes no files.", code="unsupported_value", param="input")


def _read(inline: str) -> bytes:
    """The sound of a recording in base64."""
    try:
        file = binascii.a2b_base64(inline.rpartition(",")[2])
    except ValueError:
        raise ClientMistake("Invalid audio: expected base64.", code="invalid_value", param="input") from None
    recording, pieces = Recording(file, LONGEST_S), []
    while piece := recording.read():
        pieces.append(piece)
    return b"".join(pieces)
