"""
The settings of a Realtime session: what it begins with, how a client changes them, and what of them is the engine's business.

A change is taken whole or not at all. A field that is absent is left as it is; null switches off what can be off and puts the instructions
back to what they were at the beginning, and of everything else it is read as absent.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from msgspec import UNSET, Struct, structs

from antiphon.engine_api import commands, options
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError, shorten, unsupported_parameter, unsupported_value
from antiphon.protocols.realtime.input_buffer import AUDIO_CODECS, AudioCodec
from antiphon.wire.codec.types import Wire
from antiphon.wire.realtime.server_events import RateLimit
from antiphon.wire.realtime.session import (
    Audio,
    AudioInput,
    AudioOutput,
    FunctionTool,
    NoiseReduction,
    PcmFormat,
    RetentionRatio,
    SemanticVad,
    ServerVad,
    Session,
    Transcription,
    TranscriptionSession,
    VoiceId,
)

T = TypeVar("T", bound=Wire)

AnySession = Session | TranscriptionSession

DEFAULT_VOICE = "alloy"
"""What the voice is called where an engine goes by no names."""

BETA_TEMPERATURE_DEFAULT = 0.8
"""What the beta samples with where nothing else is asked, and says so; there is no such setting any more."""

NULLABLE_FIELDS = frozenset(
    {"turn_detection", "transcription", "noise_reduction", "tracing", "prompt", "include", "reasoning", "temperature"}
)
"""What null switches off; of everything else it makes what it was at the beginning."""

SERVER_FIELDS = ("id", "object", "expires_at", "model")
"""What the server says and no client sets."""


class RealtimeSessionConfig(Struct, frozen=True, kw_only=True):
    """
    What a session begins with.

    Attributes:
        model: the name that the client asked for.
        abilities: of its engine.
        dialect: the client's; it tells of a conversation, and the limits earlier, in `beta`.
        is_transcription: whether it only writes down what is said.
        session: what is set from the beginning, as by a client.
        lasts_s: seconds after which it is over.
        instructions: what the model is told where the client says nothing else.
        limits: what may still be used, whenever it is asked.
        has_model: whether the server has a model of that name; a client that names one it doesn't have only says what it usually says.
        has_output_buffer: whether the server plays the sound itself, and hears the client's; how sound is coded is then not the client's
            to say here.
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


def initial_session(config: RealtimeSessionConfig, session_id: str, expires_at: int) -> AnySession:
    """
    The whole session as it is told first.

    Raises:
        ClientError: `opening.session` asks for what can't be had.
    """
    begun = _default_session(config, session_id, expires_at)
    if config.session is None:
        return begun
    return apply_patch(begun, config.session, config, has_spoken=False)


def apply_patch(current: AnySession, patch: AnySession, config: RealtimeSessionConfig, *, has_spoken: bool) -> AnySession:
    """
    The whole session after a change.

    Args:
        has_spoken: whether the client has heard the voice, which then stays.

    Raises:
        ClientError: it can't be had; nothing has changed.
    """
    if type(patch) is not type(current):
        asked, has = ("transcription", "realtime") if isinstance(patch, TranscriptionSession) else ("realtime", "transcription")
        raise ClientError(
            f"Passing a {asked} session update event to a {has} session is not allowed.", code="invalid_value", param="session.type"
        )
    if isinstance(patch, Session):
        _check_model(patch, config)
    patch = structs.replace(patch, **{name: UNSET for name in SERVER_FIELDS if hasattr(patch, name)})
    wanted = _merge(current, patch, _default_session(config, "", 0))
    if config.has_output_buffer:
        wanted = _as_pcm(wanted)
    _check_input(wanted, config)
    if isinstance(wanted, Session) and isinstance(current, Session):
        _check_output(wanted, config)
        _check_locks(wanted, current, has_spoken=has_spoken)
    return wanted


def has_audio_input(capabilities: Capabilities) -> bool:
    """Whether the sound of a person is of any use to an engine."""
    return capabilities.audio_in or capabilities.listens


# What it begins with


def _default_session(config: RealtimeSessionConfig, session_id: str, expires_at: int) -> AnySession:
    abilities = config.capabilities
    can_detect = bool(abilities.turn_detection) or not has_audio_input(abilities)
    sound_in = AudioInput(
        format=PcmFormat(rate=24_000),
        noise_reduction=None,
        transcription=Transcription() if config.is_transcription and abilities.transcribes else None,
        turn_detection=default_vad() if can_detect else None,
    )
    if config.is_transcription:
        return TranscriptionSession(
            id=session_id,
            object="realtime.transcription_session",
            expires_at=expires_at,
            audio=Audio(input=sound_in),
            include=None,
        )
    voice = abilities.voices[0] if abilities.voices else DEFAULT_VOICE
    return Session(
        id=session_id,
        object="realtime.session",
        model=config.model,
        expires_at=expires_at,
        output_modalities=["audio"] if abilities.audio_out else ["text"],
        instructions=config.instructions or "",
        audio=Audio(input=sound_in, output=AudioOutput(format=PcmFormat(rate=24_000), voice=voice, speed=1.0)),
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        max_output_tokens="inf",
        temperature=BETA_TEMPERATURE_DEFAULT if config.dialect == "beta" and abilities.temperature else UNSET,
        tracing=None,
        truncation="auto",
        prompt=None,
        include=None,
    )


def default_vad() -> ServerVad:
    """Turn detection by silence, as it is where nothing else was asked."""
    return ServerVad(
        threshold=0.5,
        prefix_padding_ms=300,
        silence_duration_ms=500,
        create_response=True,
        interrupt_response=True,
        idle_timeout_ms=None,
    )


# What changes


def _merge(current: T, patch: Any, default: Any) -> T:
    changes: dict[str, Any] = {}
    for name in patch.__struct_fields__:
        value = getattr(patch, name)
        if value is UNSET:
            continue
        was, usual = getattr(current, name), getattr(default, name)
        if isinstance(value, Audio | AudioInput | AudioOutput):
            if was is not UNSET:  # a session that only transcribes says nothing, and how it would sound is passed over
                changes[name] = _merge(was, value, usual)
        elif value is None:
            changes[name] = None if name in NULLABLE_FIELDS else usual
        else:
            changes[name] = _fill_in(value, was)
    return structs.replace(current, **changes)


def _as_pcm(session: AnySession) -> AnySession:
    """The session with its sound coded as it is inside of the server."""
    pcm = PcmFormat(rate=24_000)
    audio = Audio(input=structs.replace(audio_input(session), format=pcm))
    if isinstance(session, Session):
        audio = structs.replace(audio, output=structs.replace(audio_output(session), format=pcm))
    return structs.replace(session, audio=audio)


_DEFAULT_VALUES: dict[type, Callable[[], Any]] = {
    ServerVad: default_vad,
    SemanticVad: lambda: SemanticVad(eagerness="auto", create_response=True, interrupt_response=True),
    PcmFormat: lambda: PcmFormat(rate=24_000),
    NoiseReduction: lambda: NoiseReduction(strength=1.0),
}
"""What objects are made whole from, so that a client reads what is in effect."""


def _fill_in(value: Any, previous: Any) -> Any:
    """A value with what it leaves open as it was, where that was of its kind, or else as it usually is."""
    whole = _DEFAULT_VALUES.get(type(value))
    if whole is None:
        return value
    base = previous if type(previous) is type(value) else whole()
    given = {name: each for name in value.__struct_fields__ if (each := getattr(value, name)) is not UNSET}
    return structs.replace(base, **given)


# What can't be had


def _check_model(patch: Session, config: RealtimeSessionConfig) -> None:
    if isinstance(patch.model, str) and patch.model != config.model and config.has_model(patch.model):
        raise ClientError(
            f"Cannot update a conversation's model: it is '{config.model}' from its beginning. Connect anew for '{shorten(patch.model)}'.",
            code="cannot_update_model",
            param="session.model",
        )


def _check_input(session: AnySession, config: RealtimeSessionConfig) -> None:
    sound = audio_input(session)
    abilities = config.capabilities
    if not has_audio_input(abilities):
        return  # what is said of sound has no effect, and sound itself is refused
    detection = sound.turn_detection
    if isinstance(detection, ServerVad | SemanticVad) and detection.type not in abilities.turn_detection:
        raise _unsupported_error("session.audio.input.turn_detection.type", detection.type, config.model, abilities.turn_detection)
    if isinstance(sound.transcription, Transcription) and abilities.transcribes:
        _check_transcription(sound.transcription, config)
    reduction = sound.noise_reduction
    if isinstance(reduction, NoiseReduction) and reduction.type and reduction.type not in abilities.noise_reduction:
        raise _unsupported_error("session.audio.input.noise_reduction.type", reduction.type, config.model, abilities.noise_reduction)


def _check_transcription(transcription: Transcription, config: RealtimeSessionConfig) -> None:
    path, abilities = "session.audio.input.transcription", config.capabilities
    for language in expected_languages(transcription):
        if abilities.languages and language.partition("-")[0].lower() not in abilities.languages:
            raise unsupported_value(f"{path}.language", language, config.model, abilities.languages)
    if transcription.keywords and not abilities.takes_prompt:
        raise unsupported_parameter(f"{path}.keywords", config.model)
    if transcription.prompt and not abilities.takes_prompt:
        raise unsupported_parameter(f"{path}.prompt", config.model)


def expected_languages(transcription: Transcription) -> tuple[str, ...]:
    """The languages that are expected, as codes."""
    return tuple(transcription.languages or ()) or ((transcription.language,) if isinstance(transcription.language, str) else ())


def _unsupported_error(param: str, value: object, model: str, supported: Sequence[str]) -> ClientError:
    return unsupported_value(param, value, model, supported) if supported else unsupported_parameter(param, model)


def check_modalities(modalities: Any, config: RealtimeSessionConfig, path: str) -> None:
    """
    Ask whether the model can answer so.

    Raises:
        ClientError: it can't.
    """
    if list(modalities) == ["audio"] and not config.capabilities.audio_out:
        raise unsupported_value(path, "audio", config.model, ["text"])


def check_voice(voice: Any, config: RealtimeSessionConfig, path: str) -> None:
    """
    Ask whether the model has that voice.

    Raises:
        ClientError: it has others.
    """
    name, voices = voice_name(voice), config.capabilities.voices
    if config.capabilities.audio_out and voices and name not in voices:
        raise unsupported_value(path, name, config.model, voices)


def _check_output(session: Session, config: RealtimeSessionConfig) -> None:
    check_modalities(session.output_modalities, config, "session.output_modalities")
    check_voice(audio_output(session).voice, config, "session.audio.output.voice")
    if session.prompt is not None and session.prompt is not UNSET:
        raise unsupported_parameter("session.prompt", config.model)
    check_effort(session.reasoning, config, "session.reasoning.effort")
    if isinstance(session.truncation, RetentionRatio) and not config.capabilities.truncation:
        raise unsupported_value("session.truncation.type", "retention_ratio", config.model, ["auto", "disabled"])


def check_effort(reasoning: Any, config: RealtimeSessionConfig, path: str) -> None:
    """
    Ask whether the model can reason so much.

    Raises:
        ClientError: it can't.
    """
    effort = getattr(reasoning, "effort", None)
    if isinstance(effort, str) and effort not in config.capabilities.efforts:
        raise _unsupported_error(path, effort, config.model, config.capabilities.efforts)


def _check_locks(updated_session: Session, current_session: Session, *, has_spoken: bool) -> None:
    # Clients send the voice they have with every update, so only another one is refused.
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


# What is read of it


def audio_input(session: AnySession) -> AudioInput:
    """How the session hears; always there in a whole one."""
    assert isinstance(session.audio, Audio) and isinstance(session.audio.input, AudioInput)
    return session.audio.input


def audio_output(session: Session) -> AudioOutput:
    """How the session speaks; always there in a whole one."""
    assert isinstance(session.audio, Audio) and isinstance(session.audio.output, AudioOutput)
    return session.audio.output


def codec_of(format: Any) -> AudioCodec:
    """How sound stands on the wire; as it usually does where that is left open."""
    return AUDIO_CODECS[getattr(format, "type", "audio/pcm")]


def voice_name(voice: Any) -> str:
    """The name of a voice, however it was given."""
    return str(voice.id) if isinstance(voice, VoiceId) else str(voice)


def function_tools(tools: Any) -> list[FunctionTool]:
    """Those tools that the client runs."""
    return [tool for tool in tools or () if isinstance(tool, FunctionTool)]


def configure_command(session: AnySession) -> commands.Configure:
    """What the engine is told of how to listen."""
    sound = audio_input(session)
    include = session.include or ()
    return commands.Configure(
        rate_hz=codec_of(sound.format).rate_hz,
        turn_detection=_engine_turn_detection(sound.turn_detection),
        transcription=_engine_transcription(sound.transcription, logprobs="item.input_audio_transcription.logprobs" in include),
        noise_reduction=_engine_noise_reduction(sound.noise_reduction),
    )


def _engine_turn_detection(detection: Any) -> options.TurnDetection | None:
    match detection:
        case ServerVad():
            names = ("threshold", "prefix_padding_ms", "silence_duration_ms")
            return options.TurnDetection("server_vad", **{name: getattr(detection, name) for name in names})
        case SemanticVad():
            return options.TurnDetection("semantic_vad", eagerness=str(detection.eagerness))
        case _:
            return None


def _engine_transcription(transcription: Any, *, logprobs: bool) -> options.Transcription | None:
    if not isinstance(transcription, Transcription):
        return None
    return options.Transcription(
        model=transcription.model if isinstance(transcription.model, str) else None,
        languages=expected_languages(transcription),
        prompt=transcription.prompt if isinstance(transcription.prompt, str) else None,
        keywords=tuple(transcription.keywords or ()),
        delay=transcription.delay if isinstance(transcription.delay, str) else None,
        logprobs=logprobs,
    )


def _engine_noise_reduction(noise_reduction: Any) -> options.NoiseReduction | None:
    if not isinstance(noise_reduction, NoiseReduction) or not isinstance(noise_reduction.type, str):
        return None
    return options.NoiseReduction(noise_reduction.type, noise_reduction.strength if isinstance(noise_reduction.strength, float) else 1.0)
