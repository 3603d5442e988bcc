"""
A MiniCPM-o session in chat: questions, each with all of its conversation, and their answers, one after the other.

Nothing is kept from one question to the next. A question that comes while another is answered waits for its turn.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.options import Sampling, Voice
from antiphon.errors import ClientMistake, unsupported_parameter
from antiphon.protocols.minicpmo.opening import Opening
from antiphon.protocols.minicpmo.outbox import Out
from antiphon.protocols.session import Mint
from antiphon.wire.minicpmo import server_events as events
from antiphon.wire.minicpmo.chat import ChatAppend
from antiphon.wire.minicpmo.client_events import SessionInit
from antiphon.wire.minicpmo.media import RATE_OUT_HZ, to_floats

WAITING_LIMIT = 8
"""The most questions that wait while another is answered."""

LENGTH_PENALTY = 1.1
"""What the original takes where nothing is said, and its clients say all the same; not told to engines that know of none."""

_KEEPS_VOICE = "tts.ref_audio_data: this model speaks in its own voice"
_REASONS: dict[str, str] = {"stop": "turn_end"}
"""What clients know the ends of an answer as; others have the names that engines give them."""


class _Answer(Struct, kw_only=True):
    """
    A question and what came of it.

    Attributes:
        id: of the response, for the client.
        asked_at: in Unix seconds.
    """

    id: str
    input_id: str
    ask: commands.Respond
    is_streamed: bool
    asked_at: float
    words: list[str] = field(default_factory=list)
    sound: list[bytes] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)


class Chat:
    """
    What a session does once it has begun.

    Attributes:
        failed: why no more answers can be hoped for; here each is hoped for anew.
    """

    def __init__(self, opening: Opening, init: SessionInit, out: Out, mint: Mint) -> None:
        self.failed: str | None = None
        self._opening = opening
        self._init = init
        self._out = out
        self._mint = mint
        self._answer: _Answer | None = None
        self._waiting: deque[_Answer] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether it is the client's to say something."""
        return self._answer is None

    def append(self, given: ChatAppend) -> None:
        """
        A question.

        Raises:
            ClientMistake: it can't be answered, or too many wait already.
        """
        if len(self._waiting) >= WAITING_LIMIT:
            raise ClientMistake(
                f"There are {WAITING_LIMIT} questions waiting for their answers. Wait until one of them is answered.",
                code="too_many_inputs",
                type="rate_limit_error",
            )
        self._waiting.append(self._planned(given))
        self._next()

    def hear(self, word: talk_events.FromEngine) -> None:
        """The engine said so."""
        answer, taken = self._answer, _TAKES.get(type(word))
        if answer is not None and taken is not None and word.id == answer.ask.id:
            taken(self, answer, word)

    def stop(self) -> None:
        """The session is over."""
        if self._answer is not None:
            self._out.tell(commands.Cancel(self._answer.ask.id))

    # Questions

    def _planned(self, given: ChatAppend) -> _Answer:
        abilities = self._opening.abilities
        if given.speaks and not abilities.audio_out:
            raise unsupported_parameter("input.tts.enabled", self._opening.model)
        told, reference, rest = _split(given.messages)
        _check_parts(rest, len(given.messages) - len(rest), self._opening)
        if not rest:
            raise ClientMistake("Invalid 'input.messages': expected one to answer.", code="invalid_payload", param="input.messages")
        if told is None:
            told = self._init.instructions if self._init.instructions is not None else self._opening.instructions
        id = self._mint("resp")
        ask = commands.Respond(
            id=id,
            history=tuple(_with_detail(message, given.slices) for message in rest),
            instructions=told,
            sampling=Sampling(max_tokens=given.max_tokens, extra=_extra(given, abilities)),
            effort=_effort(given, abilities),
            whole=not given.streaming,
            voice=self._voice(given.voice_reference or reference) if given.speaks else None,
        )
        return _Answer(
            id=given.response_id or id,
            input_id=given.input_id or self._mint("input"),
            ask=ask,
            is_streamed=given.streaming,
            asked_at=self._out.at,
        )

    def _voice(self, reference: bytes | None) -> Voice:
        reference = reference or self._init.voice_reference or self._init.reference
        if reference is not None and not self._opening.abilities.clones:
            self._out.note(_KEEPS_VOICE)
            reference = None
        return Voice(rate_hz=RATE_OUT_HZ, reference=reference)

    def _next(self) -> None:
        if self._answer is None and self._waiting:
            self._answer = self._waiting.popleft()
            self._out.tell(self._answer.ask)

    # Answers

    def _say(self, answer: _Answer, word: talk_events.Text | talk_events.Spoken | talk_events.Refusal) -> None:
        if not word.text:
            return
        answer.words.append(word.text)
        if answer.is_streamed:
            self._send(answer, "text", text=word.text)

    def _sound(self, answer: _Answer, word: talk_events.Sound) -> None:
        if not word.pcm:
            return
        if answer.is_streamed:
            self._send(answer, "audio", audio=to_floats(word.pcm), usage=self._out.spending.told())
        else:
            answer.sound.append(word.pcm)

    def _measure(self, answer: _Answer, word: talk_events.Measured) -> None:
        answer.metrics.update(word.metrics)
        self._out.measure(word.metrics)

    def _count(self, _answer: _Answer, word: talk_events.Used) -> None:
        self._out.spending.count(word)

    def _end(self, answer: _Answer, word: talk_events.Ended) -> None:
        self._finish(answer, _REASONS.get(word.reason, word.reason))

    def _break(self, answer: _Answer, word: talk_events.Broke) -> None:
        param = word.param if word.status < 500 else None
        self._out.refuse(ClientMistake(word.message, code=word.code or "inference_failed", type=word.type, param=param))
        self._finish(answer, "error")

    def _finish(self, answer: _Answer, reason: str) -> None:
        out = self._out
        out.spending.settle(answer.ask.id)
        out.measure(answer.metrics)
        out.send(
            events.ResponseDone,
            session_id=out.session_id,
            response_id=answer.id,
            input_id=answer.input_id,
            text="".join(answer.words),
            audio=to_floats(b"".join(answer.sound)) if answer.sound else None,
            reason=reason,
            metrics=out.metrics({"wall_clock_ms": round((out.at - answer.asked_at) * 1000, 1)}),
            usage=out.spending.told(),
        )
        self._answer = None
        self._next()

    def _send(self, answer: _Answer, kind: str, **fields: Any) -> None:
        out = self._out
        out.send(
            events.OutputDelta,
            kind=kind,
            session_id=out.session_id,
            response_id=answer.id,
            input_id=answer.input_id,
            metrics=out.metrics(),
            **fields,
        )


_TAKES: dict[type, Callable[[Chat, _Answer, Any], None]] = {
    talk_events.Text: Chat._say,
    talk_events.Spoken: Chat._say,
    talk_events.Refusal: Chat._say,
    talk_events.Sound: Chat._sound,
    talk_events.Measured: Chat._measure,
    talk_events.Used: Chat._count,
    talk_events.Ended: Chat._end,
    talk_events.Broke: Chat._break,
}
"""What is made of an engine's words; of the others clients of this protocol learn nothing."""


# Of a question

_NEEDED: dict[type, Callable[[Abilities], bool]] = {
    turns.ImagePart: lambda abilities: abilities.images,
    turns.AudioPart: lambda abilities: abilities.audio_in,
    turns.SpeechPart: lambda abilities: abilities.audio_in,
    turns.VideoPart: lambda abilities: abilities.videos,
}
"""What an engine must be able to do for a part of a message."""


def _check_parts(messages: Sequence[turns.Message], first: int, opening: Opening) -> None:
    """
    Ask whether the engine takes all that is in the messages.

    Args:
        first: the client's number of the first of them.

    Raises:
        ClientMistake: it doesn't.
    """
    for index, message in enumerate(messages, first):
        for at, part in enumerate(message.parts):
            takes = _NEEDED.get(type(part))
            if takes is not None and not takes(opening.abilities):
                raise unsupported_parameter(f"input.messages[{index}].content[{at}]", opening.model)


def _split(messages: Sequence[turns.Message]) -> tuple[str | None, bytes | None, Sequence[turns.Message]]:
    """What stands before the conversation: what the model is told, and the recording of its voice; then the conversation."""
    told: list[str] = []
    reference: bytes | None = None
    for index, message in enumerate(messages):
        if message.role != "system" or not all(isinstance(part, turns.TextPart | turns.SpeechPart) for part in message.parts):
            return "\n\n".join(told) if told else None, reference, messages[index:]
        told.append("\n".join(part.text for part in message.parts if isinstance(part, turns.TextPart)))
        reference = next((part.pcm for part in message.parts if isinstance(part, turns.SpeechPart)), reference)
    return None, None, ()


def _with_detail(message: turns.Message, slices: int | None) -> turns.Message:
    """A message whose pictures are to be looked at closely, where the client wants them cut into several."""
    if slices is None or slices < 2:
        return message
    parts = tuple(turns.ImagePart(url=part.url, detail="high") if isinstance(part, turns.ImagePart) else part for part in message.parts)
    return turns.Message(message.role, parts)


def _extra(given: ChatAppend, abilities: Abilities) -> dict[str, Any]:
    """What engines of this protocol's own take; without what goes without saying, as others may refuse what they don't know."""
    extra: dict[str, Any] = {}
    if given.length_penalty is not None and given.length_penalty != LENGTH_PENALTY:
        extra["length_penalty"] = given.length_penalty
    if given.slices is not None and given.slices > 1:
        extra["max_slice_nums"] = given.slices
    if given.is_omni:
        extra["omni_mode"] = True
    if given.thinks and not abilities.efforts:
        extra["enable_thinking"] = True
    return extra


def _effort(given: ChatAppend, abilities: Abilities) -> str | None:
    """How much to reason, where an engine tells one effort from another."""
    if not abilities.efforts or given.thinks is None:
        return None
    if not given.thinks:
        return "none" if "none" in abilities.efforts else None
    return "medium" if "medium" in abilities.efforts else abilities.efforts[-1]
