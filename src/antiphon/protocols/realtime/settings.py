"""
The settings of a Realtime session: what it begins with, how a client changes them, and what of them is the engine's business.

A change is taken whole or not at all. A field that is absent is left as it is; null switches off what can be off and puts the instructions
back to what they were at the beginning, and of everything else it is read as absent.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from msgspec import UNSET, Struct, structs

from antiphon.engine_api import commands, options
from antiphon.engine_api.capabilities import Abilities
from antiphon.errors import ClientMistake, shown, unsupported_parameter, unsupported_value
from antiphon.protocols.realtime.input_buffer import CODINGS, Coding
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

BETA_TEMPERATURE = 0.8
"""What the beta samples with where nothing else is asked, and says so; there is no such setting any more."""

SWITCHES = frozenset({"turn_detection", "transcription", "noise_reduction", "tracing", "prompt", "include", "reasoning", "temperature"})
"""What null switches off; of everything else it makes what it was at the beginning."""

THEIRS = ("id", "object", "expires_at", "model")
"""What the server says and no client sets."""


class Opening(Struct, frozen=True, kw_only=True):
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
    abilities: Abilities
    dialect: Literal["ga", "beta"] = "ga"
    is_transcription: bool = False
    session: AnySession | None = None
    lasts_s: float = 3600
    instructions: str | None = None
    limits: Callable[[], Sequence[RateLimit]] = tuple
    has_model: Callable[[str], bool] = lambda _name: False
    has_output_buffer: bool = False


def initial(opening: Opening, session_id: str, expires_at: int) -> AnySession:
    """
    The whole session as it is told first.

    Raises:
        ClientMistake: `opening.session` asks for what can't be had.
    """
    begun = _default(opening, session_id, expires_at)
    if opening.session is None:
        return begun
    return changed(begun, opening.session, opening, has_spoken=False)


def changed(current: AnySession, patch: AnySession, opening: Opening, *, has_spoken: bool) -> AnySession:
    """
    The whole session after a change.

    Args:
        has_spoken: whether the client has heard the voice, which then stays.

    Raises:
        ClientMistake: it can't be had; nothing has changed.
    """
    if type(patch) is not type(current):
        asked, has = ("transcription", "realtime") if isinstance(patch, TranscriptionSession) else ("realtime", "transcription")
        raise ClientMistake(
            f"Passing a {asked} session update event to a {has} session is not allowed.", code="invalid_value", param="session.type"
        )
    if isinstance(patch, Session):
        _check_model(patch, opening)
    patch = structs.replace(patch, **{name: UNSET for name in THEIRS if hasattr(patch, name)})
    wanted = _merged(current, patch, _default(opening, "", 0))
    if opening.has_output_buffer:
        wanted = _as_pcm(wanted)
    _check_input(wanted, opening)
    if isinstance(wanted, Session) and isinstance(current, Session):
        _check_output(wanted, opening)
        _check_locks(wanted, current, has_spoken=has_spoken)
    return wanted


def can_hear(abilities: Abilities) -> bool:
    """Whether the sound of a person is of any use to an engine."""
    return abilities.audio_in or abilities.listens


# What it begins with


def _default(opening: Opening, session_id: str, expires_at: int) -> AnySession:
    abilities = opening.abilities
    can_detect = bool(abilities.turn_detection) or not can_hear(abilities)
    sound_in = AudioInput(
        format=PcmFormat(rate=24_000),
        noise_reduction=None,
        transcription=Transcription() if opening.is_transcription and abilities.transcribes else None,
        turn_detection=default_vad() if can_detect else None,
    )
    if opening.is_transcription:
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
        model=opening.model,
        expires_at=expires_at,
        output_modalities=["audio"] if abilities.audio_out else ["text"],
        instructions=opening.instructions or "",
        audio=Audio(input=sound_in, output=AudioOutput(format=PcmFormat(rate=24_000), voice=voice, speed=1.0)),
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        max_output_tokens="inf",
        temperature=BETA_TEMPERATURE if opening.dialect == "beta" and abilities.temperature else UNSET,
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


def _merged(current: T, patch: Any, default: Any) -> T:
    changes: dict[str, Any] = {}
    for name in patch.__struct_fields__:
        value = getattr(patch, name)
        if value is UNSET:
            continue
        was, usual = getattr(current, name), getattr(default, name)
        if isinstance(value, Audio | AudioInput | AudioOutput):
            if was is not UNSET:  # a session that only transcribes says nothing, and how it would sound is passed over
                changes[name] = _merged(was, value, usual)
        elif value is None:
            changes[name] = None if name in SWITCHES else usual
        else:
            changes[name] = _completed(value, was)
    return structs.replace(current, **changes)


def _as_pcm(session: AnySession) -> AnySession:
    """The session with its sound coded as it is inside of the server."""
    pcm = PcmFormat(rate=24_000)
    audio = Audio(input=structs.replace(sound_in(session), format=pcm))
    if isinstance(session, Session):
        audio = structs.replace(audio, output=structs.replace(sound_out(session), format=pcm))
    return structs.replace(session, audio=audio)


_COMPLETE: dict[type, Callable[[], Any]] = {
    ServerVad: default_vad,
    SemanticVad: lambda: SemanticVad(eagerness="auto", create_response=True, interrupt_response=True),
    PcmFormat: lambda: PcmFormat(rate=24_000),
    NoiseReduction: lambda: NoiseReduction(strength=1.0),
}
"""What objects are made whole from, so that a client reads what is in effect."""


def _completed(value: Any, was: Any) -> Any:
    """A value with what it leaves open as it was, where that was of its kind, or else as it usually is."""
    whole = _COMPLETE.get(type(value))
    if whole is None:
        return value
    base = was if type(was) is type(value) else whole()
    given = {name: each for name in value.__struct_fields__ if (each := getattr(value, name)) is not UNSET}
    return structs.replace(base, **given)


# What can't be had


def _check_model(patch: Session, opening: Opening) -> None:
    if isinstance(patch.model, str) and patch.model != opening.model and opening.has_model(patch.model):
        raise ClientMistake(
            f"Cannot update a conversation's model: it is '{opening.model}' from its beginning. Connect anew for '{shown(patch.model)}'.",
            code="cannot_update_model",
            param="session.model",
        )


def _check_input(wanted: AnySession, opening: Opening) -> None:
    sound = sound_in(wanted)
    abilities = opening.abilities
    if not can_hear(abilities):
        return  # what is said of sound has no effect, and sound itself is refused
    detection = sound.turn_detection
    if isinstance(detection, ServerVad | SemanticVad) and detection.type not in abilities.turn_detection:
        raise _not_here("session.audio.input.turn_detection.type", detection.type, opening.model, abilities.turn_detection)
    if isinstance(sound.transcription, Transcription) and abilities.transcribes:
        _check_transcription(sound.transcription, opening)
    reduction = sound.noise_reduction
    if isinstance(reduction, NoiseReduction) and reduction.type and reduction.type not in abilities.noise_reduction:
        raise _not_here("session.audio.input.noise_reduction.type", reduction.type, opening.model, abilities.noise_reduction)


def _check_transcription(wanted: Transcription, opening: Opening) -> None:
    path, abilities = "session.audio.input.transcription", opening.abilities
    for language in spoken(wanted):
        if abilities.languages and language.partition("-")[0].lower() not in abilities.languages:
            raise unsupported_value(f"{path}.language", language, opening.model, abilities.languages)
    if wanted.keywords and not abilities.takes_prompt:
        raise unsupported_parameter(f"{path}.keywords", opening.model)
    if wanted.prompt and not abilities.takes_prompt:
        raise unsupported_parameter(f"{path}.prompt", opening.model)


def spoken(wanted: Transcription) -> tuple[str, ...]:
    """The languages that are expected, as codes."""
    return tuple(wanted.languages or ()) or ((wanted.language,) if isinstance(wanted.language, str) else ())


def _not_here(param: str, got: object, model: str, supported: Sequence[str]) -> ClientMistake:
    return unsupported_value(param, got, model, supported) if supported else unsupported_parameter(param, model)


def check_modalities(modalities: Any, opening: Opening, path: str) -> None:
    """
    Ask whether the model can answer so.

    Raises:
        ClientMistake: it can't.
    """
    if list(modalities) == ["audio"] and not opening.abilities.audio_out:
        raise unsupported_value(path, "audio", opening.model, ["text"])


def check_voice(voice: Any, opening: Opening, path: str) -> None:
    """
    Ask whether the model has that voice.

    Raises:
        ClientMistake: it has others.
    """
    name, voices = voice_name(voice), opening.abilities.voices
    if opening.abilities.audio_out and voices and name not in voices:
        raise unsupported_value(path, name, opening.model, voices)


def _check_output(wanted: Session, opening: Opening) -> None:
    check_modalities(wanted.output_modalities, opening, "session.output_modalities")
    check_voice(sound_out(wanted).voice, opening, "session.audio.output.voice")
    if wanted.prompt is not None and wanted.prompt is not UNSET:
        raise unsupported_parameter("session.prompt", opening.model)
    check_effort(wanted.reasoning, opening, "session.reasoning.effort")
    if isinstance(wanted.truncation, RetentionRatio) and not opening.abilities.truncation:
        raise unsupported_value("session.truncation.type", "retention_ratio", opening.model, ["auto", "disabled"])


def check_effort(reasoning: Any, opening: Opening, path: str) -> None:
    """
    Ask whether the model can reason so much.

    Raises:
        ClientMistake: it can't.
    """
    effort = getattr(reasoning, "effort", None)
    if isinstance(effort, str) and effort not in opening.abilities.efforts:
        raise _not_here(path, effort, opening.model, opening.abilities.efforts)


def _check_locks(wanted: Session, current: Session, *, has_spoken: bool) -> None:
    # Clients send the voice they have with every update, so only another one is refused.
    if has_spoken and voice_name(sound_out(wanted).voice) != voice_name(sound_out(current).voice):
        raise ClientMistake(
            "Cannot update a conversation's voice if assistant audio is present.",
            code="cannot_update_voice",
            param="session.audio.output.voice",
        )
    if current.tracing not in (None, UNSET) and wanted.tracing != current.tracing:
        raise ClientMistake(
            "Cannot update a conversation's tracing configuration once it is set.", code="cannot_update_tracing", param="session.tracing"
        )


# What is read of it


def sound_in(session: AnySession) -> AudioInput:
    """How the session hears; always there in a whole one."""
    assert isinstance(session.audio, Audio) and isinstance(session.audio.input, AudioInput)
    return session.audio.input


def sound_out(session: Session) -> AudioOutput:
    """How the session speaks; always there in a whole one."""
    assert isinstance(session.audio, Audio) and isinstance(session.audio.output, AudioOutput)
    return session.audio.output


def coding_of(format: Any) -> Coding:
    """How sound stands on the wire; as it usually does where that is left open."""
    return CODINGS[getattr(format, "type", "audio/pcm")]


def voice_name(voice: Any) -> str:
    """The name of a voice, however it was given."""
    return str(voice.id) if isinstance(voice, VoiceId) else str(voice)


def functions(tools: Any) -> list[FunctionTool]:
    """Those tools that the client runs."""
    return [tool for tool in tools or () if isinstance(tool, FunctionTool)]


def heard_as(session: AnySession) -> commands.Configure:
    """What the engine is told of how to listen."""
    sound = sound_in(session)
    include = session.include or ()
    return commands.Configure(
        rate_hz=coding_of(sound.format).rate_hz,
        turn_detection=_detection(sound.turn_detection),
        transcription=_transcription(sound.transcription, logprobs="item.input_audio_transcription.logprobs" in include),
        noise_reduction=_reduction(sound.noise_reduction),
    )


def _detection(detection: Any) -> options.TurnDetection | None:
    match detection:
        case ServerVad():
            names = ("threshold", "prefix_padding_ms", "silence_duration_ms")
            return options.TurnDetection("server_vad", **{name: getattr(detection, name) for name in names})
        case SemanticVad():
            return options.TurnDetection("semantic_vad", eagerness=str(detection.eagerness))
        case _:
            return None


def _transcription(wanted: Any, *, logprobs: bool) -> options.Transcription | None:
    if not isinstance(wanted, Transcription):
        return None
    return options.Transcription(
        model=wanted.model if isinstance(wanted.model, str) else None,
        languages=spoken(wanted),
        prompt=wanted.prompt if isinstance(wanted.prompt, str) else None,
        keywords=tuple(wanted.keywords or ()),
        delay=wanted.delay if isinstance(wanted.delay, str) else None,
        logprobs=logprobs,
    )


def _reduction(wanted: Any) -> options.NoiseReduction | None:
    if not isinstance(wanted, NoiseReduction) or not isinstance(wanted.type, str):
        return None
    return options.NoiseReduction(wanted.type, wanted.strength if isinstance(wanted.strength, float) else 1.0)
