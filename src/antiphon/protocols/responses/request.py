"""
What a Responses request asks of an engine: every field checked against what the engine can do, before any work.

What can't be done is said, never ignored. Hints that change nothing in the answer (cache keys, tiers, identifiers) are only echoed.
"""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct

from antiphon.engine_api import commands, events as talk_events
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.options import JsonObject, JsonSchema, Sampling, Voice
from antiphon.errors import ClientMistake, invalid_modalities, unsupported_parameter, unsupported_value
from antiphon.protocols.responses.history import Located, turns_of
from antiphon.protocols.responses.tools import LeftOut, Terms, offer, tool_choice, tools_of
from antiphon.wire.responses import items
from antiphon.wire.responses.request import CreateRequest, VoiceReference

LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"

SOUND_FORMATS = ("pcm16", "wav")
"""What sound can be sent as while it is made: s16le mono at `SOUND_RATE_HZ`, bare or behind a head."""

SOUND_RATE_HZ = 24_000


class Order(Struct, frozen=True, kw_only=True):
    """
    A request with everything that it refers to.

    Attributes:
        id: of the response to be.
        model: the name it is asked under.
        given: the items that come with this request.
        past: the items of the conversation before it, oldest first.
        carries: whether tools and items that the engine can't do are carried rather than refused.
    """

    id: str
    tenant: str
    created_at: int
    model: str
    request: CreateRequest
    abilities: Abilities
    given: tuple[items.Item, ...]
    past: tuple[items.Item, ...] = ()
    carries: bool = True

    @property
    def is_kept(self) -> bool:
        """Whether the response is to be stored."""
        return self.request.store is not False

    @property
    def is_aloud(self) -> bool:
        """Whether the answer is to be spoken."""
        return wants_sound(self.request)

    @property
    def sound_format(self) -> str:
        """As what its sound is sent."""
        return (self.request.audio.format or SOUND_FORMATS[0]) if self.request.audio else SOUND_FORMATS[0]


def wants_sound(request: CreateRequest) -> bool:
    """Whether an answer is asked for that is spoken, too."""
    return "audio" in request.modalities if request.modalities else bool(request.audio)


class Asked(Struct, frozen=True):
    """A request in the engine's words, and what of it those words leave out."""

    respond: commands.Respond
    left_out: LeftOut


def given(value: Any) -> bool:
    """Whether a field was set to something: neither absent nor null."""
    return value is not UNSET and value is not None


def ask(order: Order) -> Asked:
    """
    The request in the engine's words.

    Raises:
        ClientMistake: the engine can't do what a field asks, or fields contradict each other.
    """
    request, abilities = order.request, order.abilities
    for check in _CHECKS:
        check(request, abilities, order.model)
    terms = Terms(abilities, order.model, order.carries, LeftOut())
    instructions, prelude = _instructions(request)
    located: list[Located] = [
        *prelude,
        *(("previous_response_id", item) for item in order.past),
        *((f"input[{index}]", item) for index, item in enumerate(order.given)),
    ]
    history = turns_of(located, terms)
    if not history and instructions is None:
        raise ClientMistake(
            "One of 'input' or 'previous_response_id' or 'prompt' or 'conversation' must be provided.",
            code="missing_required_parameter",
            param="input",
        )
    reasoning = request.reasoning or None
    text = request.text or None
    made = offer(tuple(tools_of(request, located)), terms)
    respond = commands.Respond(
        id=order.id,
        whole=request.stream is not True,
        history=history,
        instructions=instructions,
        tools=tuple(made.tools),
        hosted=tuple(made.hosted),
        namespaces=made.namespaces,
        tool_choice=tool_choice(request, made),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        sampling=_sampling(request),
        format=_format(text.format or None) if text else None,
        truncate=request.truncation == "auto",
        effort=(reasoning.effort or None) if reasoning else None,
        summarise=_summary_asked(request) if abilities.summaries else None,
        seal=SEALED in (request.include or ()),
        verbosity=(text.verbosity or None) if text else None,
        voice=Voice(_voice_asked(request), SOUND_RATE_HZ) if order.is_aloud else None,
    )
    return Asked(respond, terms.left_out)


# What is refused

_LATER = (
    "access_programs",
    "context_management",
    "conversation",
    "image",
    "moderation",
    "prompt",
)
"""Fields that ask for something this server does not do."""


def _check_absent(request: CreateRequest, _abilities: Abilities, model: str) -> None:
    for field in _LATER:
        if given(getattr(request, field)):
            raise unsupported_parameter(field, model)
    if request.background:
        raise unsupported_parameter("background", model)
    if given(request.stream_options) and not request.stream:
        raise ClientMistake("The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options")


def _check_sampling(request: CreateRequest, abilities: Abilities, model: str) -> None:
    asked = {
        "temperature": given(request.temperature) and not abilities.temperature,
        "top_p": given(request.top_p) and not abilities.top_p,
        "presence_penalty": bool(request.presence_penalty) and not abilities.penalties,
        "frequency_penalty": bool(request.frequency_penalty) and not abilities.penalties,
        "top_logprobs": bool(request.top_logprobs) and abilities.max_top_logprobs is None,
        "include": LOGPROBS in (request.include or ()) and abilities.max_top_logprobs is None,
    }
    for field, refused in asked.items():
        if refused:
            raise unsupported_parameter(field, model)
    if request.top_logprobs and request.top_logprobs > (abilities.max_top_logprobs or 0):
        raise ClientMistake(
            f"Invalid 'top_logprobs': integer above maximum value. Expected a value <= {abilities.max_top_logprobs}, "
            f"but got {request.top_logprobs} instead.",
            code="integer_above_max_value",
            param="top_logprobs",
        )


def _check_reasoning(request: CreateRequest, abilities: Abilities, model: str) -> None:
    if not request.reasoning:
        return
    effort = request.reasoning.effort
    if effort and not abilities.efforts and effort != "none":
        raise unsupported_parameter("reasoning.effort", model)
    if effort and abilities.efforts and effort not in abilities.efforts:
        raise unsupported_value("reasoning.effort", effort, model, abilities.efforts)
    # `auto` leaves it to the model, also whether; Codex sends it to every one.
    if _summary_asked(request) not in (None, "auto") and not abilities.summaries:
        raise unsupported_parameter("reasoning.summary", model)


def _check_text(request: CreateRequest, abilities: Abilities, model: str) -> None:
    if not request.text:
        return
    verbosity = request.text.verbosity
    if verbosity and verbosity not in (abilities.verbosities or ("medium",)):
        raise unsupported_value("text.verbosity", verbosity, model, abilities.verbosities or ("medium",))
    kind = request.text.format.type if request.text.format else "text"
    able = {"text": True, "json_object": abilities.json_object, "json_schema": abilities.json_schema}
    if not able[kind]:
        raise unsupported_value("text.format.type", kind, model, [name for name, can in able.items() if can])


def _check_sound(request: CreateRequest, abilities: Abilities, model: str) -> None:
    if request.modalities and "text" not in request.modalities:
        raise invalid_modalities("modalities", request.modalities, (("text",), ("text", "audio")))
    if not wants_sound(request):
        return
    field = "modalities" if request.modalities else "audio"
    if not abilities.audio_out:
        raise unsupported_parameter(field, model)
    if not request.stream:
        raise ClientMistake(f"Sound is only sent in streams: '{field}' asks for it, which needs 'stream' to be true.", param=field)
    voice, kind = _voice_asked(request), request.audio.format if request.audio else None
    if voice and abilities.voices and voice not in abilities.voices:
        raise unsupported_value("audio.voice", voice, model, abilities.voices)
    if kind and kind not in SOUND_FORMATS:
        raise unsupported_value("audio.format", kind, model, SOUND_FORMATS)


def _voice_asked(request: CreateRequest) -> str | None:
    voice = request.audio.voice if request.audio else None
    return voice.id if isinstance(voice, VoiceReference) else voice or None


def _check_truncation(request: CreateRequest, abilities: Abilities, model: str) -> None:
    if request.truncation == "auto" and not abilities.truncation:
        raise unsupported_value("truncation", "auto", model, ["disabled"])


_CHECKS: tuple[Callable[[CreateRequest, Abilities, str], None], ...] = (
    _check_absent,
    _check_sampling,
    _check_reasoning,
    _check_text,
    _check_sound,
    _check_truncation,
)


# What is said before everything


def _instructions(request: CreateRequest) -> tuple[str | None, list[Located]]:
    """Instructions as text, or, where they came as items, as the beginning of the conversation."""
    if not request.instructions:
        return None, []
    if isinstance(request.instructions, str):
        return request.instructions, []
    return None, [(f"instructions[{index}]", item) for index, item in enumerate(request.instructions)]


# How the answer is made


def _sampling(request: CreateRequest) -> Sampling:
    wants_logprobs = bool(request.top_logprobs) or LOGPROBS in (request.include or ())
    return Sampling(
        temperature=_or_none(request.temperature),
        top_p=_or_none(request.top_p),
        presence_penalty=_or_none(request.presence_penalty),
        frequency_penalty=_or_none(request.frequency_penalty),
        max_tokens=min(request.max_output_tokens, talk_events.MOST_TOKENS) if request.max_output_tokens else None,
        top_logprobs=(request.top_logprobs or 0) if wants_logprobs else None,
        extra=dict(request.extra or {}),
    )


def _or_none(value: Any) -> Any:
    return value if given(value) else None


def _format(wanted: Any) -> JsonObject | JsonSchema | None:
    match wanted:
        case items.JsonObjectFormat():
            return JsonObject()
        case items.JsonSchemaFormat():
            return JsonSchema(wanted.name, wanted.schema, bool(wanted.strict), wanted.description or None)
        case _:
            return None


def _summary_asked(request: CreateRequest) -> str | None:
    if not request.reasoning:
        return None
    return request.reasoning.summary or request.reasoning.generate_summary or None
