"""What an upstream is asked: the words to it as events of the Realtime API."""

from collections.abc import Mapping, Sequence
from struct import pack, unpack
from typing import Literal

from msgspec import UNSET

from antiphon.audio import SAMPLE_BYTES, Samples, from_ulaw, to_ulaw
from antiphon.engine_api import commands, options
from antiphon.engines.chat.request import flat_name
from antiphon.errors import ClientMistake
from antiphon.wire.codec.types import Opt
from antiphon.wire.realtime.dialects import DialectName
from antiphon.wire.realtime.items import InputItem
from antiphon.wire.realtime.response import ResponseAudio, ResponseAudioOutput, ResponseParams
from antiphon.wire.realtime.session import (
    Audio,
    AudioInput,
    AudioOutput,
    Format,
    FunctionTool,
    NoiseReduction,
    PcmFormat,
    PcmuFormat,
    Reasoning,
    RetentionRatio,
    SemanticVad,
    ServerVad,
    Session,
    TokenLimits,
    Tool,
    ToolChoice,
    ToolChoiceFunction,
    Transcription,
)

MOST_TOKENS = 4096
"""The most that a number can ask for; `inf` is more."""

TELEPHONE_HZ = 8_000
PLAIN_HZ = 24_000
"""The one rate at which servers take sound that is not as the telephone carries it."""

EFFORTS = ("minimal", "low", "medium", "high", "xhigh")


def session_of(configure: commands.Configure) -> Session:
    """How the upstream is to listen. When to answer is not for it to decide."""
    hearing = AudioInput(
        format=format_of(wire_hz_of(configure.rate_hz)),
        transcription=_transcription(configure.transcription),
        noise_reduction=_noise_reduction(configure.noise_reduction),
        turn_detection=_turn_detection(configure.turn_detection),
    )
    wants_logprobs = configure.transcription is not None and configure.transcription.logprobs
    return Session(audio=Audio(input=hearing), include=["item.input_audio_transcription.logprobs"] if wants_logprobs else UNSET)


def session_for(ask: commands.Respond, dialect: DialectName) -> Session:
    """What an answer asks that only a session has: how fast it is spoken, and what becomes of a conversation that is too long."""
    speed = ask.voice.speed if ask.voice is not None else 1.0
    return Session(
        audio=Audio(output=AudioOutput(speed=max(0.25, min(speed, 1.5)))),
        truncation=UNSET if dialect == "beta" else "disabled" if not ask.truncate else _retention(ask.retain),
    )


def params_of(
    ask: commands.Respond, given: Opt[list[InputItem]], correlation: Mapping[str, str] | None, dialect: DialectName
) -> ResponseParams:
    """
    What an answer is to be.

    Args:
        given: what it answers in place of the conversation.
        correlation: what the upstream is to tell back with an answer that leaves its conversation as it is; None for one that doesn't.
    """
    names = ask.tool_choice.only
    tools: list[Tool] = [_tool(tool) for tool in ask.tools if names is None or tool.key in names]
    voice = ask.voice
    most, warmth = ask.sampling.max_tokens, ask.sampling.temperature
    return ResponseParams(
        conversation=UNSET if correlation is None else "none",
        input=given,
        instructions=ask.instructions if ask.instructions is not None else UNSET,
        output_modalities=["text"] if voice is None else ["audio"],
        audio=UNSET if voice is None else ResponseAudio(output=_output(voice)),
        tools=tools or UNSET,
        tool_choice=_choice(ask.tool_choice.mode, tools),
        parallel_tool_calls=False if tools and not ask.parallel_tool_calls else UNSET,
        reasoning=Reasoning(effort=ask.effort) if ask.effort in EFFORTS else UNSET,  # type: ignore[arg-type]
        max_output_tokens=UNSET if most is None else most if most <= MOST_TOKENS else "inf",
        temperature=UNSET if warmth is None or dialect != "beta" else max(0.6, min(warmth, 1.2)),
        metadata=dict(correlation) if correlation is not None else UNSET,
    )


def wire_hz_of(rate_hz: int) -> int:
    """The rate on the wire of live sound that comes at that rate."""
    return TELEPHONE_HZ if rate_hz == TELEPHONE_HZ else PLAIN_HZ


def format_of(rate_hz: int) -> Format:
    """How sound at that rate stands on the wire."""
    return PcmuFormat() if rate_hz == TELEPHONE_HZ else PcmFormat(rate=rate_hz)


def encoded(pcm: bytes, rate_hz: int, wire_hz: int) -> bytes:
    """Sound as the upstream takes it, which is told to expect it at `wire_hz`."""
    if rate_hz != wire_hz:
        pcm = _at_rate(pcm, rate_hz, wire_hz)
    return to_ulaw(pcm) if wire_hz == TELEPHONE_HZ else pcm


class Decoder:
    """
    Sound of one part of an answer, as it comes, to whole samples.

    Args:
        rate_hz: samples a second, as asked for.
    """

    def __init__(self, rate_hz: int) -> None:
        self._take = from_ulaw if rate_hz == TELEPHONE_HZ else Samples().take

    def take(self, sound: bytes) -> bytes:
        """s16le."""
        return self._take(sound)


def _at_rate(pcm: bytes, rate_hz: int, wanted_hz: int) -> bytes:
    # Straight lines between the samples: short of a filter, and still speech to whoever transcribes it.
    samples = unpack(f"<{len(pcm) // SAMPLE_BYTES}h", pcm)
    count = len(samples) * wanted_hz // rate_hz
    placed = (divmod(number * rate_hz, wanted_hz) for number in range(count))
    last = len(samples) - 1
    lines = (samples[at] + (samples[min(at + 1, last)] - samples[at]) * rest // wanted_hz for at, rest in placed)
    return pack(f"<{count}h", *lines)


def _turn_detection(detection: options.TurnDetection | None) -> ServerVad | SemanticVad | None:
    if detection is None:
        return None
    if detection.kind == "semantic_vad":
        return SemanticVad(eagerness=detection.eagerness, create_response=False, interrupt_response=False)  # type: ignore[arg-type]
    return ServerVad(
        threshold=detection.threshold,
        prefix_padding_ms=detection.prefix_padding_ms,
        silence_duration_ms=detection.silence_duration_ms,
        create_response=False,
        interrupt_response=False,
    )


def _transcription(asked: options.Transcription | None) -> Transcription | None:
    if asked is None:
        return None
    languages = list(asked.languages)
    return Transcription(
        model=asked.model or UNSET,
        language=languages[0] if len(languages) == 1 else UNSET,
        languages=languages if len(languages) > 1 else UNSET,
        prompt=asked.prompt or UNSET,
        keywords=list(asked.keywords) or UNSET,
        delay=asked.delay or UNSET,  # type: ignore[arg-type]
    )


def _noise_reduction(asked: options.NoiseReduction | None) -> NoiseReduction | None:
    if asked is None:
        return None
    return NoiseReduction(type=asked.kind, strength=UNSET if asked.strength == 1 else asked.strength)  # type: ignore[arg-type]


def _retention(retain: options.Retention | None) -> Literal["auto"] | RetentionRatio:
    if retain is None:
        return "auto"
    limits = UNSET if retain.most_tokens is None else TokenLimits(post_instructions=retain.most_tokens)
    return RetentionRatio(retention_ratio=retain.ratio, token_limits=limits)


def _output(voice: options.Voice) -> ResponseAudioOutput:
    return ResponseAudioOutput(format=format_of(voice.rate_hz), voice=voice.name or UNSET)


def _tool(tool: options.Tool) -> FunctionTool:
    if not isinstance(tool, options.FunctionTool):
        raise ClientMistake(f"This model takes no tool of that kind ('{tool.name}').", code="unsupported_parameter", param="tools")
    return FunctionTool(
        name=flat_name(tool.name, tool.namespace),
        description=tool.description if tool.description is not None else UNSET,
        parameters=tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}},
    )


def _choice(mode: Literal["none", "auto", "required"], tools: Sequence[Tool]) -> Opt[ToolChoice]:
    if not tools or mode == "auto":
        return UNSET
    if mode == "required" and len(tools) == 1 and isinstance(tools[0], FunctionTool):
        return ToolChoiceFunction(name=tools[0].name)
    return mode
