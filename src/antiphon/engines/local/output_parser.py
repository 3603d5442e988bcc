"""
What a model's words amount to: text, or calls of tools.

Where a call is required the model is held to one by a grammar, and its arguments are passed on as they come. Where it may choose, it
writes what it likes, and what it writes is a call if it looks like one, names a tool that was offered, and has arguments that the tool
takes; all else is text, and text that doesn't look like a call is passed on at once.
"""

import json
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from antiphon.engine_api import events as talk_events
from antiphon.engines.local.json_schema import Schema
from antiphon.engines.local.tool_grammar import CLOSE, OPEN, Offer
from antiphon.errors import ClientMistake

Logprobs = Sequence[talk_events.TokenLogprob]
Words = list[talk_events.FromEngine]

# A call larger than this is text: a model that never closes its braces would otherwise say nothing at all.
MAX_HELD_CHARACTERS = 32_000


def mint_call_id() -> str:
    """A new id for a call."""
    return f"call_{secrets.token_hex(12)}"


class Reader(Protocol):
    """
    Makes words of what the model writes.

    Attributes:
        done: nothing that the model may still write matters.
    """

    done: bool

    def read(self, text: str, logprobs: Logprobs = ()) -> Words:
        """
        The words that `text`, more of the answer, makes sayable.

        Raises:
            ClientMistake: the model is not where it was to be held.
        """

    def finish(self, cut: bool) -> Words:
        """
        What is left to say at the end; `cut` where the answer was cut off.

        Raises:
            ClientMistake: the answer is not what was promised.
        """


class PlainReader:
    """All of it is text."""

    def __init__(self, id: str) -> None:
        self.done = False
        self._id = id

    def read(self, text: str, logprobs: Logprobs = ()) -> Words:
        """The text."""
        return [talk_events.Text(self._id, text, tuple(logprobs))] if text or logprobs else []

    def finish(self, cut: bool) -> Words:
        """Nothing: all was said."""
        return []


class FormatReader(PlainReader):
    """Text that is to satisfy a schema; looked after here, since the native side drops a constraint without saying so."""

    def __init__(self, id: str, schema: Schema, strict: bool) -> None:
        super().__init__(id)
        self._schema = schema
        self._strict = strict
        self._text = ""

    def read(self, text: str, logprobs: Logprobs = ()) -> Words:
        """The text."""
        self._text += text
        if self._schema.is_object and self._text and self._text[0] != "{":
            raise unheld("text.format.schema")
        return super().read(text, logprobs)

    def finish(self, cut: bool) -> Words:
        """Nothing, if the text is what was promised."""
        if self._strict and not cut and not self._schema.accepts(_decoded(self._text)):
            raise unheld("text.format.schema")
        return []


class ForcedReader:
    """One call, held to the grammar."""

    def __init__(self, id: str, offers: Sequence[Offer], mint: Callable[[], str] = mint_call_id) -> None:
        self.done = False
        self._id = id
        self._offers = offers
        self._call_id = mint()
        self._called: Offer | None = None
        self._held = ""
        self._end = JsonEnd()

    def read(self, text: str, logprobs: Logprobs = ()) -> Words:
        """The call, then its arguments as they come."""
        if self.done:
            return []
        if self._called is not None:
            return self._arguments(self._called, text)
        self._held += text
        for offer in self._offers:
            if self._held.startswith(offer.prefix):
                self._called, text, self._held = offer, self._held.removeprefix(offer.prefix), ""
                return [offer.calling(self._id, self._call_id), *self._arguments(offer, text)]
        if not any(offer.prefix.startswith(self._held) for offer in self._offers):
            raise unheld("tools")
        return []

    def finish(self, cut: bool) -> Words:
        """Nothing more; a call that was cut off stays without its `Called`."""
        return []

    def _arguments(self, offer: Offer, text: str) -> Words:
        end = self._end.feed(text)
        self.done = end is not None
        piece = text[:end]
        if offer.custom:  # its input is one JSON string: there is nothing to say before all of it is there
            self._held += piece
            piece = offer.given(self._held) if self.done else ""
        said: Words = [talk_events.Arguments(self._id, self._call_id, piece)] if piece else []
        return [*said, talk_events.Called(self._id, self._call_id)] if self.done else said


_MARKS = (OPEN.strip(), "```json", "```", "")
_ENDS = (CLOSE.strip(), "```")
_FIRST_KEYS = ('{"name":', '{"arguments":')


class SniffingReader:
    """
    Text, unless it looks like calls and is.

    A call is looked for where the answer begins, and wherever `<tool_call>` is written; after one, only another may follow.

    Args:
        parallel: whether calls after the first are kept.
        plain: what reads that which turns out to be text.
    """

    def __init__(
        self, id: str, offers: Sequence[Offer], parallel: bool, plain: PlainReader, mint: Callable[[], str] = mint_call_id
    ) -> None:
        self.done = False
        self._id = id
        self._offers = {offer.name: offer for offer in offers}
        self._parallel = parallel
        self._plain = plain
        self._mint = mint
        self._held = ""
        self._logprobs: list[talk_events.TokenLogprob] = []
        self._step: Callable[[], Words | None] = self._opening
        self._end = JsonEnd()
        self._calls = 0

    def read(self, text: str, logprobs: Logprobs = ()) -> Words:
        """What is certain by now."""
        self._held += text
        self._logprobs += logprobs
        said: Words = []
        while not self.done and (words := self._step()) is not None:
            said += words
        return said

    def finish(self, cut: bool) -> Words:
        """What was held back for a call that never was, as the text that it is."""
        return [] if self._calls else [*self._text(len(self._held)), *self._plain.finish(cut)]

    def _opening(self) -> Words | None:
        """Undecided: what is held may be the beginning of a call."""
        if (at := _object_at(self._held)) is None:
            return None
        if at < 0:
            return self._no_call()
        self._begin, self._fed = at, at
        self._end = JsonEnd()
        self._step = self._call
        return []

    def _call(self) -> Words | None:
        """In what looks like a call, up to where its object ends."""
        fed, self._fed = self._fed, len(self._held)
        if (size := self._end.feed(self._held[fed:])) is None:
            return self._no_call() if len(self._held) > MAX_HELD_CHARACTERS else None
        end = fed + size
        if (words := self._called(self._held[self._begin : end])) is None:
            return self._no_call()
        self._held = self._held[end:]
        self._logprobs.clear()
        self._calls += 1
        self._step = self._between
        self.done = not self._parallel
        return words

    def _no_call(self) -> Words:
        if self._calls:  # what follows a call and is none is chatter about a result that isn't there yet
            self.done = True
            return []
        self._step = self._prose
        # Past a mark that opened nothing, or it would be found again.
        return self._text(self._held.index(_MARKS[0]) + len(_MARKS[0]) if self._held.lstrip().startswith(_MARKS[0]) else 0)

    def _between(self) -> Words | None:
        """After a call: its end mark, and perhaps another."""
        rest = self._held.lstrip()
        for mark in _ENDS:
            if rest.startswith(mark):
                self._held = rest.removeprefix(mark)
                self._step = self._opening
                return []
        if any(mark.startswith(rest) for mark in _ENDS):
            return None
        self._step = self._opening
        return []

    def _prose(self) -> Words | None:
        """In text, watching for the mark of a call."""
        mark = _MARKS[0]
        if (at := self._held.find(mark)) >= 0:
            self._step = self._opening
            return self._text(at)
        return self._text(len(self._held) - _overlap(self._held, mark)) or None

    def _text(self, size: int) -> Words:
        piece, self._held = self._held[:size], self._held[size:]
        if not piece:
            return []
        logprobs, self._logprobs = self._logprobs, []
        return self._plain.read(piece, logprobs)

    def _called(self, text: str) -> Words | None:
        """The words of the call that `text` is, if it is one."""
        match _decoded(text):
            case {"name": str(name), **rest} if name in self._offers and rest.keys() <= {"arguments"}:
                offer, arguments = self._offers[name], rest.get("arguments", {})
            case _:
                return None
        if isinstance(arguments, str):
            arguments = _decoded(arguments)
        if not isinstance(arguments, dict) or not offer.schema.accepts(arguments):
            return None
        call_id = self._mint()
        given = offer.given(json.dumps(arguments, ensure_ascii=False))
        return [offer.calling(self._id, call_id), talk_events.Arguments(self._id, call_id, given), talk_events.Called(self._id, call_id)]


class JsonEnd:
    """Where a JSON object ends, found as it comes."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """How much of `text` belongs to the object, or None where it goes on."""
        for at, character in enumerate(text):
            if self._quoted:
                self._in_string(character)
            elif character == '"':
                self._quoted = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0:
                    return at + 1
        return None

    def _in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._quoted = False


def unheld(param: str) -> ClientMistake:
    """The schema is one, but the model can't be held to it: such as where nothing satisfies it."""
    return ClientMistake(
        "Invalid schema: the model could not be held to it. Perhaps nothing satisfies it, or it is too complex.",
        code="invalid_json_schema",
        param=param,
    )


def _object_at(held: str) -> int | None:
    """Where the object begins in what looks like a call; -1 where it can't be one; None where that is open."""
    rest = held.lstrip()
    verdict: int | None = -1
    for mark in _MARKS:
        if rest.startswith(mark):
            found = _looks(inner := rest[len(mark) :].lstrip())
            if found:
                return len(held) - len(inner)
            if found is None:
                verdict = None
        elif mark.startswith(rest):
            verdict = None
    return verdict


def _looks(inner: str) -> bool | None:
    """Whether this is the beginning of a call's object; None where it is too short to tell."""
    squeezed = re.sub(r"\s", "", inner[:64])
    if squeezed.startswith(_FIRST_KEYS):
        return True
    return None if any(key.startswith(squeezed) for key in _FIRST_KEYS) else False


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


def _decoded(text: str) -> Any:
    """The JSON value that `text` is, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
