"""
The settings of a Realtime session: their defaults, how a client changes them, and what the engine gets of them.

A change applies whole or not at all. An absent field keeps its value. Null switches off what can be off; any other
field it resets to what it was at the start of the session, unless that can't change.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from msgspec import UNSET, Struct, structs

from antiphon.engine_api import commands, options
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError, shorten, unsupported_parameter, unsupported_value
from antiphon.protocols.realtime.input_buffer import AUDIO_CODECS, AudioCodec
from antiphon.protocols.tool_loop import LoopLimits
from antiphon.wire.codec.types import Maybe, Opt, Wire
from antiphon.wire.realtime.server_events import RateLimit
from antiphon.wire.realtime.session import (
    Audio,
    AudioInput,
    AudioOutput,
    Format,
    FunctionTool,
    McpTool,
    Modality,
    NoiseReduction,
    PcmFormat,
    Reasoning,
    SemanticVad,
    ServerVad,
    Session,
    Tool,
    Transcription,
    TranscriptionSession,
    TurnDetection,
    VoiceId,
)

T = TypeVar("T", bound=Wire)

AnySession = Session | TranscriptionSession

DEFAULT_VOICE = "alloy"
"""The name of the voice of engines that have no voice names."""

SPOKEN_INSTRUCTIONS = (
    "You are a helpful assistant on a voice call: the user hears your answers and does not see them. Answer in one or two short "
    "sentences, as people speak, and say more only when asked to. Use no lists, no formatting and no emoji."
)
"""The default instructions for a model that writes, where a voice of this server reads its answers aloud."""

BETA_TEMPERATURE_DEFAULT = 0.8
"""The beta's default, which it reports. In GA there is no such setting any more."""

NULLABLE_FIELDS = frozenset({"turn_detection", "transcription", "noise_reduction", "prompt", "include", "reasoning", "temperature"})
"""The fields that null switches off; it resets all others but `LASTING_FIELDS` to their defaults."""

LASTING_FIELDS = frozenset({"tracing"})
"""The fields that can't change once they are set: null, which clients send for what they don't set, asks for no change."""

SERVER_FIELDS = ("id", "object", "expires_at", "model")
"""The fields that only the server sets."""


class RealtimeSessionConfig(Struct, frozen=True, kw_only=True):
    """
    The configuration of a session.

    Attributes:
        model: the name that the client requested.
        capabilities: of its engine.
        dialect: the client's. In `beta` the session also sends `conversation.created`, and rate limits at the start of
            a response.
        is_transcription: whether the session only transcribes.
        session: settings to start with, as if a client had sent them.
        max_duration_s: how long the session may last.
        instructions: the default instructions.
        rate_limits: returns what is left of the client's limits.
        has_model: whether the server has a model of that name; names of unknown models in `session.update` are ignored.
        has_output_buffer: whether the server itself plays audio, as over WebRTC; the client can then set no audio
            formats.
        loop_limits: of the calls that the server makes in a response.
        check_tools: raises `ClientError` for MCP servers, each with its path, that the server can't or won't ask.
    """

    model: str
    capabilities: Capabilities
    dialect: Literal["ga", "beta"] = "ga"
    is_transcription: bool = False
    session: AnySession | None = None
    max_duration_s: float = 3600
    instructions: str | None = None
    rate_limits: Callable[[], Sequence[RateLimit]] = tuple
    has_model: Callable[[str], bool] = lambda _name: False
    has_output_buffer: bool = False
    loop_limits: LoopLimits = LoopLimits()
    check_tools: Callable[[Sequence[tuple[str, McpTool]]], None] = lambda _tools: None


def initial_session(config: RealtimeSessionConfig, session_id: str, expires_at: int) -> AnySession:
    """
    The whole session, as `session.created` shows it.

    Raises:
        ClientError: the engine can't do what `config.session` asks.
    """
    session = _default_session(config, session_id, expires_at)
    if config.session is None:
        return session
    return apply_patch(session, config.session, config, has_spoken=False)


def without_credentials(session: AnySession) -> AnySession:
    """The session as the client sees it: what it sent to be let in at MCP servers is not sent back, nor recorded."""
    tools = session.tools if isinstance(session, Session) else None
    if not tools or not any(isinstance(tool, McpTool) for tool in tools):
        return session
    nothing = {"authorization": UNSET, "headers": None}
    return structs.replace(session, tools=[structs.replace(tool, **nothing) if isinstance(tool, McpTool) else tool for tool in tools])


def apply_patch(current: AnySession, patch: AnySession, config: RealtimeSessionConfig, *, has_spoken: bool) -> AnySession:
    """
    The whole session after a change.

    Args:
        has_spoken: whether there is assistant audio; the voice can't change after it.

    Raises:
        ClientError: the change is impossible.
    """
    # Realtime: the type of a session can't change; these are the original's words.
    if type(patch) is not type(current):
        names = ("transcription", "realtime") if isinstance(patch, TranscriptionSession) else ("realtime", "transcription")
        message = "Passing a {} session update event to a {} session is not allowed.".format(*names)
        raise ClientError(message, code="invalid_value", param="session.type")
    if isinstance(patch, Session):
        _check_model(patch, config)
        check_servers(patch.tools, config, "session.tools")
    patch = structs.replace(patch, **{name: UNSET for name in SERVER_FIELDS if hasattr(patch, name)})
    session = _merge(current, patch, _default_session(config, "", 0))
    if config.has_output_buffer:
        session = _as_pcm(session)
    _check_input(session, config)
    if isinstance(session, Session) and isinstance(current, Session):
        _check_output(session, config)
        _check_locks(session, current, has_spoken=has_spoken)
    return session


def has_audio_input(capabilities: Capabilities) -> bool:
    """Whether an engine takes audio, in the history or live."""
    return capabilities.audio_in or capabilities.listens


# Defaults


def _default_session(config: RealtimeSessionConfig, session_id: str, expires_at: int) -> AnySession:
    capabilities = config.capabilities
    can_detect = bool(capabilities.turn_detection) or not has_audio_input(capabilities)
    audio_in = AudioInput(
        # Realtime reference: the only rate of PCM. pipecat ends its session if `session.created` shows another.
        format=PcmFormat(rate=24_000),
        noise_reduction=None,
        transcription=Transcription() if config.is_transcription and capabilities.transcribes else None,
        turn_detection=default_vad() if can_detect else None,
    )
    if config.is_transcription:
        return TranscriptionSession(
            id=session_id,
            object="realtime.transcription_session",
            expires_at=expires_at,
            audio=Audio(input=audio_in),
            include=None,
        )
    voice = capabilities.voices[0] if capabilities.voices else DEFAULT_VOICE
    return Session(
        id=session_id,
        object="realtime.session",
        model=config.model,
        expires_at=expires_at,
        # Realtime GA: one modality or the other; audio always comes with its transcript.
        output_modalities=["audio"] if capabilities.audio_out else ["text"],
        instructions=config.instructions or "",
        audio=Audio(input=audio_in, output=AudioOutput(format=PcmFormat(rate=24_000), voice=voice, speed=1.0)),
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        max_output_tokens="inf",
        # Only the beta has a temperature.
        temperature=BETA_TEMPERATURE_DEFAULT if config.dialect == "beta" and capabilities.temperature else UNSET,
        tracing=None,
        truncation="auto",
        prompt=None,
        include=None,
    )


def default_vad() -> ServerVad:
    """Turn detection by silence, with all defaults (Realtime reference: `turn_detection`)."""
    return ServerVad(
        threshold=0.5,
        prefix_padding_ms=300,
        silence_duration_ms=500,
        create_response=True,
        interrupt_response=True,
        idle_timeout_ms=None,
    )


# Changes


def _merge(current: T, patch: Wire, default: Wire) -> T:
    changes: dict[str, object] = {}
    for name in patch.__struct_fields__:
        value = getattr(patch, name)
        if value is UNSET or name == "extra":  # what nothing here reads is not in effect, so it is not shown either
            continue
        current_value, default_value = getattr(current, name), getattr(default, name)
        if isinstance(value, Audio | AudioInput | AudioOutput):
            if current_value is not UNSET:  # a transcription session has no `audio.output`, so that part of a patch is ignored
                changes[name] = _merge(current_value, value, default_value)
        elif value is None and name in LASTING_FIELDS:
            continue
        elif value is None:
            changes[name] = None if name in NULLABLE_FIELDS else default_value
        else:
            changes[name] = _fill_in(value, current_value)
    return structs.replace(current, **changes)


def _as_pcm(session: AnySession) -> AnySession:
    """The session with the server's own audio format, which WebRTC sessions report."""
    pcm = PcmFormat(rate=24_000)
    audio = Audio(input=structs.replace(audio_input(session), format=pcm))
    if isinstance(session, Session):
        audio = structs.replace(audio, output=structs.replace(audio_output(session), format=pcm))
    return structs.replace(session, audio=audio)


_DEFAULT_VALUES: dict[type, Callable[[], Wire]] = {
    ServerVad: default_vad,
    SemanticVad: lambda: SemanticVad(eagerness="auto", create_response=True, interrupt_response=True),
    PcmFormat: lambda: PcmFormat(rate=24_000),
    NoiseReduction: lambda: NoiseReduction(strength=1.0),
}
"""Defaults for objects whose fields a client may leave out: the session shows the values in effect."""


def _fill_in(value: object, previous: object) -> object:
    """
    The value with its absent fields filled in: from the previous value of the same type, or else from the defaults.
    """
    if not isinstance(value, Wire):
        return value
    default = _DEFAULT_VALUES.get(type(value))
    if default is None:
        return _without_extra(value)
    base = previous if isinstance(previous, type(value)) else default()
    changes = {name: each for name in value.__struct_fields__ if (each := getattr(value, name)) is not UNSET and name != "extra"}
    return structs.replace(base, **changes)


def _without_extra(value: T) -> T:
    """The value as far as its fields are known, in the objects in it, too: the rest is ignored, and so not shown."""
    fields = [(name, getattr(value, name)) for name in value.__struct_fields__ if name != "extra"]
    inner_values = {name: _without_extra(each) for name, each in fields if isinstance(each, Wire)}
    return structs.replace(value, extra=UNSET, **inner_values)


# Checks


def _check_model(patch: Session, config: RealtimeSessionConfig) -> None:
    # Clients send their built-in default with every update, whatever model they connected to, so only a name that this
    # server has is taken for a wish to change (docs/decisions/0015).
    if isinstance(patch.model, str) and patch.model != config.model and config.has_model(patch.model):
        raise ClientError(
            f"Cannot update a conversation's model: it is '{config.model}'. Open a new session for '{shorten(patch.model)}'.",
            code="cannot_update_model",
            param="session.model",
        )


def _check_input(session: AnySession, config: RealtimeSessionConfig) -> None:
    audio = audio_input(session)
    capabilities = config.capabilities
    if not has_audio_input(capabilities):
        return  # audio settings have no effect, and audio itself is refused
    detection = audio.turn_detection
    if isinstance(detection, ServerVad | SemanticVad) and detection.type not in capabilities.turn_detection:
        raise _unsupported_error("session.audio.input.turn_detection.type", detection.type, config.model, capabilities.turn_detection)
    if isinstance(audio.transcription, Transcription) and capabilities.transcribes:
        _check_transcription(audio.transcription, config)
    reduction = audio.noise_reduction
    kinds = capabilities.noise_reduction  # a hint for engines without any
    if isinstance(reduction, NoiseReduction) and reduction.type and kinds and reduction.type not in kinds:
        raise unsupported_value("session.audio.input.noise_reduction.type", reduction.type, config.model, kinds)


def _check_transcription(transcription: Transcription, config: RealtimeSessionConfig) -> None:
    path, capabilities = "session.audio.input.transcription", config.capabilities
    for language in expected_languages(transcription):
        # ISO 639-1, maybe with a region (`en-GB`), of which models know nothing.
        if capabilities.languages and language.partition("-")[0].lower() not in capabilities.languages:
            raise unsupported_value(f"{path}.language", language, config.model, capabilities.languages)


def expected_languages(transcription: Transcription) -> tuple[str, ...]:
    """The codes of the languages that the client expects."""
    return tuple(transcription.languages or ()) or ((transcription.language,) if isinstance(transcription.language, str) else ())


def _unsupported_error(param: str, value: object, model: str, allowed_values: Sequence[str]) -> ClientError:
    return unsupported_value(param, value, model, allowed_values) if allowed_values else unsupported_parameter(param, model)


def check_modalities(modalities: Opt[list[Modality]] | None, config: RealtimeSessionConfig, path: str) -> None:
    """
    Check that the model can answer in these modalities.

    Raises:
        ClientError: it can't.
    """
    if modalities == ["audio"] and not config.capabilities.audio_out:
        raise unsupported_value(path, "audio", config.model, ["text"])


def check_voice(voice: Maybe[str | VoiceId], config: RealtimeSessionConfig, path: str) -> None:
    """
    Check that the model has that voice.

    Raises:
        ClientError: it hasn't.
    """
    name, voices = voice_name(voice), config.capabilities.voices
    if config.capabilities.audio_out and voices and name not in voices:
        raise unsupported_value(path, name, config.model, voices)


def check_servers(tools: Maybe[Sequence[Tool]], config: RealtimeSessionConfig, path: str) -> None:
    """
    Check the MCP servers among a client's tools.

    Raises:
        ClientError: one is not valid.
    """
    config.check_tools([(f"{path}[{index}]", tool) for index, tool in enumerate(tools or ()) if isinstance(tool, McpTool)])


def _check_output(session: Session, config: RealtimeSessionConfig) -> None:
    check_modalities(session.output_modalities, config, "session.output_modalities")
    check_voice(audio_output(session).voice, config, "session.audio.output.voice")
    if session.prompt is not None and session.prompt is not UNSET:
        raise unsupported_parameter("session.prompt", None)
    check_effort(session.reasoning, config, "session.reasoning.effort")


def check_effort(reasoning: Maybe[Reasoning], config: RealtimeSessionConfig, path: str) -> None:
    """
    Check that the model has that reasoning effort, if it has efforts at all; for others it is a hint.

    Raises:
        ClientError: it has others only.
    """
    effort, efforts = getattr(reasoning, "effort", None), config.capabilities.efforts
    if isinstance(effort, str) and efforts and effort not in efforts:
        raise unsupported_value(path, effort, config.model, efforts)


def _check_locks(updated_session: Session, current_session: Session, *, has_spoken: bool) -> None:
    # Clients repeat their voice in every update, so only a different one is refused.
    if has_spoken and voice_name(audio_output(updated_session).voice) != voice_name(audio_output(current_session).voice):
        raise ClientError(
            "Cannot update a conversation's voice if assistant audio is present.",
            code="cannot_update_voice",
            param="session.audio.output.voice",
        )
    if current_session.tracing not in (None, UNSET) and updated_session.tracing != current_session.tracing:
        raise ClientError(
            "Cannot update a conversation's tracing configuration once it is set.", code="cannot_update_tracing", param="session.tracing"
        )


# Reading a session


def audio_input(session: AnySession) -> AudioInput:
    """The session's `audio.input`, which a whole session always has."""
    assert isinstance(session.audio, Audio) and isinstance(session.audio.input, AudioInput)
    return session.audio.input


def audio_output(session: Session) -> AudioOutput:
    """The session's `audio.output`, which a whole session always has."""
    assert isinstance(session.audio, Audio) and isinstance(session.audio.output, AudioOutput)
    return session.audio.output


def codec_of(format: Maybe[Format]) -> AudioCodec:
    """The codec of an audio format; PCM if the format is not set."""
    return AUDIO_CODECS[getattr(format, "type", "audio/pcm")]


def voice_name(voice: Maybe[str | VoiceId]) -> str:
    """The name of a voice, in either of its two forms."""
    return str(voice.id) if isinstance(voice, VoiceId) else str(voice)


def function_tools(tools: Maybe[Sequence[Tool]]) -> list[FunctionTool]:
    """The tools that the client itself runs."""
    return [tool for tool in tools or () if isinstance(tool, FunctionTool)]


def configure_command(session: AnySession, capabilities: Capabilities) -> commands.Configure:
    """The command that configures how the engine listens, without the hints that it can't act on."""
    audio = audio_input(session)
    include = session.include or ()
    return commands.Configure(
        rate_hz=codec_of(audio.format).rate_hz,
        turn_detection=_engine_turn_detection(audio.turn_detection),
        transcription=_engine_transcription(
            audio.transcription, capabilities, logprobs="item.input_audio_transcription.logprobs" in include
        ),
        noise_reduction=_engine_noise_reduction(audio.noise_reduction) if capabilities.noise_reduction else None,
    )


def _engine_turn_detection(detection: Maybe[TurnDetection]) -> options.TurnDetection | None:
    match detection:
        case ServerVad():
            names = ("threshold", "prefix_padding_ms", "silence_duration_ms")
            return options.TurnDetection("server_vad", **{name: getattr(detection, name) for name in names})
        case SemanticVad():
            return options.TurnDetection("semantic_vad", eagerness=str(detection.eagerness))
        case _:
            return None


def _engine_transcription(
    transcription: Maybe[Transcription], capabilities: Capabilities, *, logprobs: bool
) -> options.Transcription | None:
    if not isinstance(transcription, Transcription):
        return None
    return options.Transcription(
        model=transcription.model if isinstance(transcription.model, str) else None,
        languages=expected_languages(transcription),
        prompt=transcription.prompt if isinstance(transcription.prompt, str) and capabilities.takes_prompt else None,
        keywords=tuple(transcription.keywords or ()) if capabilities.takes_prompt else (),
        delay=transcription.delay if isinstance(transcription.delay, str) else None,
        logprobs=logprobs,
    )


def _engine_noise_reduction(noise_reduction: Maybe[NoiseReduction]) -> options.NoiseReduction | None:
    if not isinstance(noise_reduction, NoiseReduction) or not isinstance(noise_reduction.type, str):
        return None
    return options.NoiseReduction(noise_reduction.type, noise_reduction.strength if isinstance(noise_reduction.strength, float) else 1.0)
