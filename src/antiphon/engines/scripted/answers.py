"""
The answers of a scripted engine: which one is given, and the words of it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.audio import ms_of
from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.options import Voice
from antiphon.engines.scripted.script import Answer, Line, Script, Usage
from antiphon.engines.scripted.voice import Recordings, sounding, spoken, tone

PARROT = Answer(say="{input}")

INPUT_MS = 100
"""Of sound that was heard, to a token; likewise `OUTPUT_MS` of sound that is said."""

OUTPUT_MS = 50


_Said = talk_events.Text | talk_events.Reasoning | talk_events.Refusal | talk_events.Arguments | talk_events.Spoken


class _Telling(Struct):
    """
    An answer that is being given.

    Attributes:
        last: the text of the turn that it answers.
        words: how many were said.
        sound_bytes: how much was said aloud.
        calls: how many were made.
    """

    ask: commands.Respond
    recordings: Recordings
    last: str
    words: int = 0
    sound_bytes: int = 0
    calls: int = 0

    def count(self, word: talk_events.FromEngine) -> None:
        if isinstance(word, talk_events.Sound):
            self.sound_bytes += len(word.pcm)
        self.calls += isinstance(word, talk_events.Calling)
        self.words += isinstance(word, _Said)

    def exceeds(self, word: talk_events.FromEngine) -> bool:
        """Whether the limit leaves no room for it; what begins a call needs room for a word of its arguments."""
        most = self.ask.sampling.max_tokens
        if most is None:
            return False
        if isinstance(word, talk_events.Sound):
            return self.words + self.sound_tokens(len(word.pcm)) > most
        return isinstance(word, _Said | talk_events.Calling) and self.words + self.sound_tokens() >= most

    def sound_tokens(self, more_bytes: int = 0) -> int:
        voice = self.ask.voice
        return _tokens(self.sound_bytes + more_bytes, voice.rate_hz, OUTPUT_MS) if voice is not None else 0


def performance(
    script: Script, recordings: Recordings, ask: commands.Respond, heard: Mapping[str, str], answer: Answer | None = None
) -> Iterator[talk_events.FromEngine | float]:
    """
    The words of the answer as far as the limit on its tokens allows, and pauses in seconds, ending with the one word that ends it.

    Args:
        heard: what was said in the turns that were heard, by their ids.
        answer: the one to give; None for the first that fits.
    """
    fitting, last = _choose(script, ask, heard)
    answer = answer or fitting
    telling = _Telling(ask, recordings, last)
    used: Usage | None = None
    reason: talk_events.EndReason = "stop"
    for line in answer.every_line():
        if line.broke is not None:
            yield talk_events.Broke(id=ask.id, **structs.asdict(line.broke))
            return
        if line.ended is not None:
            reason = line.ended
            break
        used = line.used or used
        if line.wait_ms is not None:
            yield line.wait_ms / 1000
        for word in _words(line, telling):
            if telling.exceeds(word):
                yield from _ending(telling, used, "length")
                return
            telling.count(word)
            yield word
    yield from _ending(telling, used, reason)


def _ending(telling: _Telling, used: Usage | None, reason: talk_events.EndReason) -> Iterator[talk_events.FromEngine]:
    yield _count(telling, used)
    yield talk_events.Ended(telling.ask.id, reason)


def _choose(script: Script, ask: commands.Respond, heard: Mapping[str, str]) -> tuple[Answer, str]:
    last = ask.history[-1] if ask.history else turns.Message("user", ())
    text = _text(last, heard)
    kind = "result" if isinstance(last, turns.ToolResult) else "message"
    for answer in script.answers:
        if answer.to in (None, kind) and re.search(answer.when, text, re.IGNORECASE):
            return answer, text
    return PARROT, text


def _text(turn: turns.Turn, heard: Mapping[str, str]) -> str:
    return "".join(_part_text(part, heard) for part in _parts(turn))


def _parts(turn: turns.Turn) -> tuple[turns.Part, ...]:
    return turn.parts if isinstance(turn, turns.Message | turns.ToolResult) else ()


def _part_text(part: turns.Part, heard: Mapping[str, str]) -> str:
    match part:
        case turns.TextPart(text) | turns.RefusalPart(text):
            return text
        case turns.SpeechPart(pcm=pcm, rate_hz=rate_hz, turn_id=turn_id, transcript=transcript):
            if transcript is not None:
                return transcript
            return heard.get(turn_id or "") or wordless(ms_of(len(pcm), rate_hz))
        case _:
            return ""


def wordless(ms: float) -> str:
    """What speech is heard as of which the script knows nothing."""
    return f"speech of {ms:.0f} ms"


# The words of a line

_SAID: dict[str, Callable[[str, str], talk_events.FromEngine]] = {
    "text": talk_events.Text,
    "refusal": talk_events.Refusal,
    "reasoning": talk_events.Reasoning,
    "summary": lambda id, piece: talk_events.Reasoning(id, piece, summary=True),
}


def _words(line: Line, telling: _Telling) -> Iterator[talk_events.FromEngine]:
    id, voice = telling.ask.id, telling.ask.voice
    if line.trouble is not None:
        yield talk_events.Trouble(**structs.asdict(line.trouble))
    if line.call is not None:
        yield from _call(line, line.call, telling)
    if line.sealed is not None:
        yield talk_events.Sealed(id, line.sealed)
    if line.annotation is not None:
        yield talk_events.Annotated(id, line.annotation)
    if line.measured is not None:
        yield talk_events.Measured(id, line.measured)
    if voice is not None:
        yield from _aloud(line, telling, voice)
    for field, word in _SAID.items():
        if (text := getattr(line, field)) is not None and (voice is None or field != "text"):
            yield from (word(id, piece) for piece in pieces(text, telling.last))
    if line.summary is not None:
        yield talk_events.ReasoningBreak(id)


def _aloud(line: Line, telling: _Telling, voice: Voice) -> Iterator[talk_events.FromEngine]:
    id = telling.ask.id
    recording: bytes | None = None
    if line.sound is not None:
        recording = telling.recordings.play(line.sound, voice)
    elif line.aloud_ms is not None:
        recording = tone(line.aloud_ms, voice)
    said = pieces(line.text or "", telling.last)
    if said:
        yield from spoken(id, said, recording, voice)
    elif recording is not None:
        yield from sounding(id, recording, voice)


def _call(line: Line, name: str, telling: _Telling) -> Iterator[talk_events.FromEngine]:
    id = telling.ask.id
    call_id = line.call_id or f"call_{id.removeprefix('resp_')[:16]}{telling.calls + 1}"
    yield talk_events.Calling(id, call_id, name, custom=line.input is not None, namespace=line.namespace)
    for piece in pieces(_arguments(line), telling.last):
        yield talk_events.Arguments(id, call_id, piece)
    yield talk_events.Called(id, call_id)


def _arguments(line: Line) -> str:
    given: Any = line.input if line.input is not None else line.arguments if line.arguments is not None else {}
    return given if isinstance(given, str) else msgspec.json.encode(given).decode()


def pieces(text: str, last: str = "") -> list[str]:
    """The text as a model would stream it: word by word, white space leading; `{input}` in it is `last`."""
    return re.findall(r"\s*\S+|\s+$", text.replace("{input}", last))


# What it cost


def tokens_in(ask: commands.Respond) -> tuple[int, int]:
    """The tokens of all that was said, one a word and one for so much sound, and how many of them are of sound."""
    parts = [part for turn in ask.history for part in _parts(turn)]
    words = sum(len(part.text.split()) for part in parts if isinstance(part, turns.TextPart | turns.RefusalPart))
    sound = sum(_tokens(len(part.pcm), part.rate_hz, INPUT_MS) for part in parts if isinstance(part, turns.SpeechPart))
    return words + sound, sound


def _tokens(pcm_bytes: int, rate_hz: int, token_ms: int) -> int:
    """Tokens of sound; the last may be short of its time."""
    return -int(-ms_of(pcm_bytes, rate_hz) // token_ms)


def _count(telling: _Telling, used: Usage | None) -> talk_events.Used:
    """What the script claims, or else what was heard and said."""
    ask = telling.ask
    if used is None:
        heard, heard_sound = tokens_in(ask)
        sound = telling.sound_tokens()
        used = Usage(input_tokens=heard, output_tokens=telling.words + sound, input_audio_tokens=heard_sound, output_audio_tokens=sound)
    return talk_events.Used(id=ask.id, **structs.asdict(used))
