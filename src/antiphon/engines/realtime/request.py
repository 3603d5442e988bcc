"""Engine commands in the shapes of the Realtime API."""

from collections.abc import Mapping, Sequence
from struct import pack, unpack
from typing import Literal

from msgspec import UNSET

from antiphon.audio import SAMPLE_BYTES, SampleAligner, decode_ulaw, encode_ulaw
from antiphon.engine_api import commands, options
from antiphon.engines.chat.request import flat_name
from antiphon.errors import ClientError
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

MAX_OUTPUT_TOKENS = 4096
"""The API's maximum for `max_output_tokens` as a number; more is `inf`."""

PCMU_RATE_HZ = 8_000
PCM_RATE_HZ = 24_000
"""The one sample rate of `audio/pcm` that servers take."""

REASONING_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")


def input_session(configure: commands.Configure) -> Session:
    """The `session.update` for the input. The server never responds by itself: the client's session decides when."""
    audio_input = AudioInput(
        format=audio_format(wire_rate_hz(configure.rate_hz)),
        transcription=_transcription(configure.transcription),
        noise_reduction=_noise_reduction(configure.noise_reduction),
        turn_detection=_turn_detection(configure.turn_detection),
    )
    wants_logprobs = configure.transcription is not None and configure.transcription.logprobs
    return Session(audio=Audio(input=audio_input), include=["item.input_audio_transcription.logprobs"] if wants_logprobs else UNSET)


def output_session(request: commands.Respond, dialect: DialectName) -> Session:
    """The fields of a response that the API has only on the session: speed (0.25 to 1.5) and truncation (GA only)."""
    speed = request.voice.speed if request.voice is not None else 1.0
    return Session(
        audio=Audio(output=AudioOutput(speed=max(0.25, min(speed, 1.5)))),
        truncation=UNSET if dialect == "beta" else "disabled" if not request.truncate else _retention(request.retention),
    )


def response_params(
    request: commands.Respond, input_items: Opt[list[InputItem]], correlation: Mapping[str, str] | None, dialect: DialectName
) -> ResponseParams:
    """
    The parameters of `response.create`.

    Args:
        input_items: the input in place of the conversation.
        correlation: metadata that the server returns with an out-of-band response; None for a response in the
            conversation.
    """
    names = request.tool_choice.name_set
    tools: list[Tool] = [_function_tool(tool) for tool in request.tools if names is None or tool.key in names]
    voice = request.voice
    max_tokens, temperature = request.sampling.max_tokens, request.sampling.temperature
    return ResponseParams(
        conversation=UNSET if correlation is None else "none",
        input=input_items,
        instructions=request.instructions if request.instructions is not None else UNSET,
        output_modalities=["text"] if voice is None else ["audio"],
        audio=UNSET if voice is None else ResponseAudio(output=_audio_output(voice)),
        tools=tools or UNSET,
        tool_choice=_tool_choice(request.tool_choice.mode, tools),
        parallel_tool_calls=False if tools and not request.parallel_tool_calls else UNSET,
        reasoning=Reasoning(effort=request.reasoning_effort) if request.reasoning_effort in REASONING_EFFORTS else UNSET,  # type: ignore[arg-type]
        max_output_tokens=UNSET if max_tokens is None else max_tokens if max_tokens <= MAX_OUTPUT_TOKENS else "inf",
        # Only the beta has a temperature, from 0.6 to 1.2.
        temperature=UNSET if temperature is None or dialect != "beta" else max(0.6, min(temperature, 1.2)),
        metadata=dict(correlation) if correlation is not None else UNSET,
    )


def wire_rate_hz(rate_hz: int) -> int:
    """The sample rate on the wire of live audio with this rate."""
    return PCMU_RATE_HZ if rate_hz == PCMU_RATE_HZ else PCM_RATE_HZ


def audio_format(rate_hz: int) -> Format:
    """The wire format of audio with this rate: mu-law at 8 kHz, else PCM."""
    return PcmuFormat() if rate_hz == PCMU_RATE_HZ else PcmFormat(rate=rate_hz)


def encode_audio(pcm: bytes, rate_hz: int, wire_hz: int) -> bytes:
    """Audio for the server, whose session has the rate `wire_hz`."""
    if rate_hz != wire_hz:
        pcm = _resample_linear(pcm, rate_hz, wire_hz)
    return encode_ulaw(pcm) if wire_hz == PCMU_RATE_HZ else pcm


class RealtimeAudioDecoder:
    """
    Decodes the audio of one part of a response into whole samples.

    Args:
        rate_hz: the sample rate that was requested.
    """

    def __init__(self, rate_hz: int) -> None:
        self._decode = decode_ulaw if rate_hz == PCMU_RATE_HZ else SampleAligner().align

    def decode(self, audio: bytes) -> bytes:
        """The next chunk as s16le."""
        return self._decode(audio)


def _resample_linear(pcm: bytes, rate_hz: int, target_hz: int) -> bytes:
    # Linear interpolation, because this engine needs no numpy: aliased, but still speech to a transcriber.
    samples = unpack(f"<{len(pcm) // SAMPLE_BYTES}h", pcm)
    count = len(samples) * target_hz // rate_hz
    positions = (divmod(number * rate_hz, target_hz) for number in range(count))
    last = len(samples) - 1
    output = (samples[i] + (samples[min(i + 1, last)] - samples[i]) * remainder // target_hz for i, remainder in positions)
    return pack(f"<{count}h", *output)


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


def _transcription(transcription: options.Transcription | None) -> Transcription | None:
    if transcription is None:
        return None
    languages = list(transcription.languages)
    return Transcription(
        model=transcription.model or UNSET,
        language=languages[0] if len(languages) == 1 else UNSET,
        languages=languages if len(languages) > 1 else UNSET,
        prompt=transcription.prompt or UNSET,
        keywords=list(transcription.keywords) or UNSET,
        delay=transcription.delay or UNSET,  # type: ignore[arg-type]
    )


def _noise_reduction(reduction: options.NoiseReduction | None) -> NoiseReduction | None:
    if reduction is None:
        return None
    return NoiseReduction(type=reduction.kind, strength=UNSET if reduction.strength == 1 else reduction.strength)  # type: ignore[arg-type]


def _retention(retention: options.Retention | None) -> Literal["auto"] | RetentionRatio:
    if retention is None:
        return "auto"
    limits = UNSET if retention.max_tokens is None else TokenLimits(post_instructions=retention.max_tokens)
    return RetentionRatio(retention_ratio=retention.ratio, token_limits=limits)


def _audio_output(voice: options.Voice) -> ResponseAudioOutput:
    return ResponseAudioOutput(format=audio_format(voice.rate_hz), voice=voice.name or UNSET)


def _function_tool(tool: options.Tool) -> FunctionTool:
    if not isinstance(tool, options.FunctionTool):
        raise ClientError(f"This model does not take the tool '{tool.name}', only functions.", code="unsupported_parameter", param="tools")
    return FunctionTool(
        name=flat_name(tool.name, tool.namespace),
        description=tool.description if tool.description is not None else UNSET,
        parameters=tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}},
    )


def _tool_choice(mode: Literal["none", "auto", "required"], tools: Sequence[Tool]) -> Opt[ToolChoice]:
    if not tools or mode == "auto":
        return UNSET
    if mode == "required" and len(tools) == 1 and isinstance(tools[0], FunctionTool):
        return ToolChoiceFunction(name=tools[0].name)
    return mode
