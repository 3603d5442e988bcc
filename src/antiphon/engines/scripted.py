"""
The engine that says what it is told, at the pace it is told: for tests, benchmarks and machines without a model.

A script is a list of answers; the first whose `when` is found in the last turn is given. With no script it repeats what it was told.
`docs/reference/engine-scripted.md` describes every key.
"""

import asyncio
import contextlib
import re
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon import talk, turns
from antiphon.engines.base import Conversation, Deliver, EngineOverrun, Place
from antiphon.errors import OurFault

ALL_ABILITIES = talk.Abilities(
    images=True,
    files=True,
    audio_in=True,
    tools=True,
    custom_tools=True,
    grammars=True,
    json_object=True,
    json_schema=True,
    truncation=True,
    penalties=True,
    max_top_logprobs=20,
    efforts=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    summaries=True,
    verbosities=("low", "medium", "high"),
    counts_tokens=True,
)


class Breakage(Struct, frozen=True, forbid_unknown_fields=True):
    """How a scripted answer fails; the fields of `talk.Broke`."""

    message: str = "The script says so."
    status: int = 500
    code: str | None = "server_error"
    type: str = "server_error"
    param: str | None = None
    retry_after_s: float | None = None


class Usage(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that a scripted answer claims to have used; the fields of `talk.Used`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """
    One thing to say, or to do, exactly one field of the first group set.

    Attributes:
        text: the answer's text, split into words, each said at the script's pace.
        call: name of a tool to call, with `arguments` (a table, or text as it is), or with `input` for a custom tool.
        wait_ms: silence.
        repeat: how often to say the line.
    """

    text: str | None = None
    reasoning: str | None = None
    summary: str | None = None
    sealed: str | None = None
    refusal: str | None = None
    annotation: dict[str, Any] | None = None
    call: str | None = None
    wait_ms: float | None = None
    used: Usage | None = None
    broke: Breakage | None = None
    ended: talk.EndReason | None = None

    arguments: dict[str, Any] | str | None = None
    input: str | None = None
    call_id: str | None = None
    namespace: str | None = None
    repeat: int = 1


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """
    What to say when the last turn contains `when` (a regular expression, in any case of letters; empty matches all).

    Attributes:
        to: whether it answers a `message` or a tool's `result`; None for either.
        say: short for one line of text.
    """

    when: str = ""
    to: Literal["message", "result"] | None = None
    say: str | None = None
    lines: tuple[Line, ...] = ()


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """
    All that a scripted model knows.

    Attributes:
        pace_ms: time between words; 0 says all of an answer at once.
        abilities: what to claim not to be able to do, or otherwise; fields of `talk.Abilities`.
        script: a TOML file with these fields, read in place of the rest.
    """

    answers: tuple[Answer, ...] = ()
    pace_ms: float = 0.0
    abilities: dict[str, Any] = {}
    script: str | None = None


PARROT = Answer(say="{input}")


def build(model: str, options: Mapping[str, Any], place: Place) -> "Scripted":
    """
    A scripted engine from the model's table in the configuration.

    Raises:
        OurFault: the script can't be read, or has a key that is no part of a script.
    """
    try:
        script = msgspec.convert(dict(options), Script, strict=False)
        if script.script is not None:
            script = msgspec.convert(_read(place.base / script.script), Script, strict=False)
        abilities = msgspec.convert(msgspec.to_builtins(ALL_ABILITIES) | dict(script.abilities), talk.Abilities, strict=False)
        for answer in script.answers:
            re.compile(answer.when)
    except (msgspec.ValidationError, re.error) as error:
        raise OurFault(f"The script of model '{model}' is wrong: {error}.") from None
    return Scripted(script, abilities)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise OurFault(f"The script {path} can't be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise OurFault(f"The script {path} is not TOML: {error}.") from None


class Scripted:
    """An engine that says what its script says."""

    def __init__(self, script: Script, abilities: talk.Abilities = ALL_ABILITIES) -> None:
        self.abilities = abilities
        self._script = script

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    async def count(self, ask: talk.Respond) -> int:
        """One token a word, as in every answer that claims nothing else."""
        return _words_in(ask)

    @contextlib.asynccontextmanager
    async def open(self, settings: talk.Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation in which every `Respond` is answered from the script."""
        async with asyncio.TaskGroup() as tasks:
            conversation = _Conversation(self._script, deliver, tasks)
            try:
                yield conversation
            finally:
                conversation.hush()


class _Conversation:
    """Says answers, each in a task of its own, until it is hushed."""

    LIMIT = 64
    BREATH = 1000

    def __init__(self, script: Script, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._script = script
        self._deliver = deliver
        self._tasks = tasks
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._may_speak = asyncio.Event()
        self._may_speak.set()
        self._hushed = False

    def tell(self, word: talk.ToEngine) -> None:
        match word:
            case talk.Respond(id=id):
                if len(self._answering) >= self.LIMIT:
                    raise EngineOverrun(f"{self.LIMIT} answers are under way already")
                task = self._answering[id] = self._tasks.create_task(self._speak(word))
                task.add_done_callback(partial(self._over, id))
            case talk.Cancel(id):
                if id in self._answering:
                    self._answering[id].cancel()

    def pause(self) -> None:
        self._may_speak.clear()

    def resume(self) -> None:
        self._may_speak.set()

    def hush(self) -> None:
        """Say nothing more."""
        self._hushed = True
        for task in self._answering.values():
            task.cancel()

    def _over(self, id: str, task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step runs none of its own code.
        del self._answering[id]
        if task.cancelled() and not self._hushed:
            self._deliver((talk.Ended(id, "cancelled"),))

    async def _speak(self, ask: talk.Respond) -> None:
        pace_s = self._script.pace_ms / 1000
        together: list[talk.FromEngine] = []
        for step in _performance(self._script, ask):
            if isinstance(step, float):
                self._say(together)
                await asyncio.sleep(step)
                continue
            together.append(step)
            if pace_s or len(together) == self.BREATH:
                await self._may_speak.wait()
                self._say(together)
                await asyncio.sleep(pace_s)
        await self._may_speak.wait()
        # An answer is never delivered from within `tell`: the task's first step already runs after it.
        self._say(together)

    def _say(self, together: list[talk.FromEngine]) -> None:
        if together:
            self._deliver(tuple(together))
            together.clear()


def _performance(script: Script, ask: talk.Respond) -> Iterator[talk.FromEngine | float]:
    """The words of the answer, and pauses in seconds, ending with the one word that ends it."""
    answer, heard = _choose(script, ask)
    lines = answer.lines if answer.say is None else (Line(text=answer.say), *answer.lines)
    spoken = 0
    used: Usage | None = None
    calls = 0
    for line in lines:
        for _ in range(line.repeat):
            if line.wait_ms is not None:
                yield line.wait_ms / 1000
            elif line.broke is not None:
                broke = line.broke
                yield talk.Broke(id=ask.id, **{name: getattr(broke, name) for name in Breakage.__struct_fields__})
                return
            elif line.used is not None:
                used = line.used
            elif line.ended is not None:
                yield _count(ask, used, spoken)
                yield talk.Ended(ask.id, line.ended)
                return
            else:
                calls += line.call is not None
                for word in _words(line, ask.id, heard, calls):
                    spoken += isinstance(word, talk.Text | talk.Reasoning | talk.Refusal | talk.Arguments)
                    yield word
    yield _count(ask, used, spoken)
    yield talk.Ended(ask.id)


def _choose(script: Script, ask: talk.Respond) -> tuple[Answer, str]:
    last = ask.history[-1] if ask.history else turns.Message("user", ())
    heard = _heard(last)
    kind = "result" if isinstance(last, turns.ToolResult) else "message"
    for answer in script.answers:
        if answer.to in (None, kind) and re.search(answer.when, heard, re.IGNORECASE):
            return answer, heard
    return PARROT, heard


def _heard(turn: turns.Turn) -> str:
    match turn:
        case turns.Message(_, parts) | turns.ToolResult(_, parts):
            return "".join(part.text for part in parts if isinstance(part, turns.TextPart | turns.RefusalPart))
        case _:
            return ""


_SPOKEN: dict[str, Callable[[str, str], talk.FromEngine]] = {
    "text": talk.Text,
    "refusal": talk.Refusal,
    "reasoning": talk.Reasoning,
    "summary": lambda id, piece: talk.Reasoning(id, piece, summary=True),
}


def _words(line: Line, id: str, heard: str, number: int) -> Iterator[talk.FromEngine]:
    if line.call is not None:
        yield from _call(line, id, heard, number)
    if line.sealed is not None:
        yield talk.Sealed(id, line.sealed)
    if line.annotation is not None:
        yield talk.Annotated(id, line.annotation)
    for field, word in _SPOKEN.items():
        if (text := getattr(line, field)) is not None:
            yield from (word(id, piece) for piece in _pieces(text, heard))
    if line.summary is not None:
        yield talk.ReasoningBreak(id)


def _call(line: Line, id: str, heard: str, number: int) -> Iterator[talk.FromEngine]:
    assert line.call is not None
    call_id = line.call_id or f"call_{id.removeprefix('resp_')[:16]}{number}"
    custom = line.input is not None
    arguments = line.arguments if line.arguments is not None else {}
    text = line.input if line.input is not None else arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    yield talk.Calling(id, call_id, line.call, custom=custom, namespace=line.namespace)
    for piece in _pieces(text, heard):
        yield talk.Arguments(id, call_id, piece)
    yield talk.Called(id, call_id)


def _pieces(text: str, heard: str) -> list[str]:
    """The text as a model would stream it: word by word, white space leading."""
    return re.findall(r"\s*\S+|\s+$", text.replace("{input}", heard))


def _words_in(ask: talk.Respond) -> int:
    return sum(len(_heard(turn).split()) for turn in ask.history)


def _count(ask: talk.Respond, used: Usage | None, spoken: int) -> talk.Used:
    """What the script claims, or else one token a word."""
    if used is None:
        used = Usage(input_tokens=_words_in(ask), output_tokens=spoken)
    return talk.Used(id=ask.id, **{name: getattr(used, name) for name in Usage.__struct_fields__})
