"""
The answers of a scripted engine: which one is given, and the words of it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.audio import duration_ms
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import Voice
from antiphon.engines.scripted.script import Script, ScriptAnswer, ScriptedUsage, ScriptLine
from antiphon.engines.scripted.voice import ScriptedRecordings, audio_events, spoken_events, tone

ECHO_ANSWER = ScriptAnswer(say="{input}")

INPUT_TOKEN_MS = 100
"""Of sound that was heard, to a token; likewise `OUTPUT_MS` of sound that is said."""

OUTPUT_TOKEN_MS = 50


_CountedEvent = events.TextDelta | events.ReasoningDelta | events.RefusalDelta | events.ToolArgumentsDelta | events.AudioTranscriptDelta


class _ScriptedResponse(Struct):
    """
    An answer that is being given.

    Attributes:
        last: the text of the turn that it answers.
        words: how many were said.
        sound_bytes: how much was said aloud.
        calls: how many were made.
    """

    request: commands.Respond
    recordings: ScriptedRecordings
    input_text: str
    word_count: int = 0
    audio_bytes: int = 0
    call_count: int = 0

    def count(self, event: events.EngineEvent) -> None:
        if isinstance(event, events.AudioDelta):
            self.audio_bytes += len(event.pcm)
        self.call_count += isinstance(event, events.ToolCallStarted)
        self.word_count += isinstance(event, _CountedEvent)

    def exceeds_limit(self, event: events.EngineEvent) -> bool:
        """Whether the limit leaves no room for it; what begins a call needs room for a word of its arguments."""
        most = self.request.sampling.max_tokens
        if most is None:
            return False
        if isinstance(event, events.AudioDelta):
            return self.word_count + self.audio_tokens(len(event.pcm)) > most
        return isinstance(event, _CountedEvent | events.ToolCallStarted) and self.word_count + self.audio_tokens() >= most

    def audio_tokens(self, more_bytes: int = 0) -> int:
        voice = self.request.voice
        return _audio_tokens(self.audio_bytes + more_bytes, voice.rate_hz, OUTPUT_TOKEN_MS) if voice is not None else 0


def response_steps(
    script: Script,
    recordings: ScriptedRecordings,
    request: commands.Respond,
    transcripts: Mapping[str, str],
    answer: ScriptAnswer | None = None,
) -> Iterator[events.EngineEvent | float]:
    """
    The words of the answer as far as the limit on its tokens allows, and pauses in seconds, ending with the one word
    that ends it.

    Args:
        heard: what was said in the turns that were heard, by their ids.
        answer: the one to give; None for the first that fits.
    """
    fitting, last = _choose_answer(script, request, transcripts)
    answer = answer or fitting
    telling = _ScriptedResponse(request, recordings, last)
    used: ScriptedUsage | None = None
    reason: events.EndReason = "stop"
    for line in answer.every_line():
        if line.broke is not None:
            yield events.ResponseFailed(id=request.id, **structs.asdict(line.broke))
            return
        if line.ended is not None:
            reason = line.ended
            break
        used = line.used or used
        if line.wait_ms is not None:
            yield line.wait_ms / 1000
        for word in _line_events(line, telling):
            if telling.exceeds_limit(word):
                yield from _end_events(telling, used, "length")
                return
            telling.count(word)
            yield word
    yield from _end_events(telling, used, reason)


def _end_events(response: _ScriptedResponse, usage: ScriptedUsage | None, reason: events.EndReason) -> Iterator[events.EngineEvent]:
    yield _usage(response, usage)
    yield events.ResponseEnded(response.request.id, reason)


def _choose_answer(script: Script, request: commands.Respond, transcripts: Mapping[str, str]) -> tuple[ScriptAnswer, str]:
    last = request.history[-1] if request.history else history.Message("user", ())
    text = _item_text(last, transcripts)
    kind = "result" if isinstance(last, history.ToolResult) else "message"
    for answer in script.answers:
        if answer.to in (None, kind) and re.search(answer.when, text, re.IGNORECASE):
            return answer, text
    return ECHO_ANSWER, text


def _item_text(item: history.HistoryItem, transcripts: Mapping[str, str]) -> str:
    return "".join(_part_text(part, transcripts) for part in _parts(item))


def _parts(item: history.HistoryItem) -> tuple[history.HistoryPart, ...]:
    return item.parts if isinstance(item, history.Message | history.ToolResult) else ()


def _part_text(part: history.HistoryPart, transcripts: Mapping[str, str]) -> str:
    match part:
        case history.TextPart(text) | history.RefusalPart(text):
            return text
        case history.SpeechPart(pcm=pcm, rate_hz=rate_hz, turn_id=turn_id, transcript=transcript):
            if transcript is not None:
                return transcript
            return transcripts.get(turn_id or "") or placeholder_transcript(duration_ms(len(pcm), rate_hz))
        case _:
            return ""


def placeholder_transcript(ms: float) -> str:
    """What speech is heard as of which the script knows nothing."""
    return f"speech of {ms:.0f} ms"


# The words of a line

_TEXT_EVENTS: dict[str, Callable[[str, str], events.EngineEvent]] = {
    "text": events.TextDelta,
    "refusal": events.RefusalDelta,
    "reasoning": events.ReasoningDelta,
    "summary": lambda id, piece: events.ReasoningDelta(id, piece, summary=True),
}


def _line_events(line: ScriptLine, response: _ScriptedResponse) -> Iterator[events.EngineEvent]:
    id, voice = response.request.id, response.request.voice
    if line.trouble is not None:
        yield events.EngineError(**structs.asdict(line.trouble))
    if line.call is not None:
        yield from _call_events(line, line.call, response)
    if line.sealed is not None:
        yield events.EncryptedReasoning(id, line.sealed)
    if line.annotation is not None:
        yield events.AnnotationAdded(id, line.annotation)
    if line.measured is not None:
        yield events.EngineMetrics(id, line.measured)
    if voice is not None:
        yield from _speech_events(line, response, voice)
    for field, word in _TEXT_EVENTS.items():
        if (text := getattr(line, field)) is not None and (voice is None or field != "text"):
            yield from (word(id, piece) for piece in split_words(text, response.input_text))
    if line.summary is not None:
        yield events.ReasoningBoundary(id)


def _speech_events(line: ScriptLine, response: _ScriptedResponse, voice: Voice) -> Iterator[events.EngineEvent]:
    id = response.request.id
    recording: bytes | None = None
    if line.sound is not None:
        recording = response.recordings.play(line.sound, voice)
    elif line.aloud_ms is not None:
        recording = tone(line.aloud_ms, voice)
    said = split_words(line.text or "", response.input_text)
    if said:
        yield from spoken_events(id, said, recording, voice)
    elif recording is not None:
        yield from audio_events(id, recording, voice)


def _call_events(line: ScriptLine, name: str, response: _ScriptedResponse) -> Iterator[events.EngineEvent]:
    id = response.request.id
    call_id = line.call_id or f"call_{id.removeprefix('resp_')[:16]}{response.call_count + 1}"
    yield events.ToolCallStarted(id, call_id, name, custom=line.input is not None, namespace=line.namespace)
    for piece in split_words(_arguments(line), response.input_text):
        yield events.ToolArgumentsDelta(id, call_id, piece)
    yield events.ToolCallDone(id, call_id)


def _arguments(line: ScriptLine) -> str:
    given: Any = line.input if line.input is not None else line.arguments if line.arguments is not None else {}
    return given if isinstance(given, str) else msgspec.json.encode(given).decode()


def split_words(text: str, input_text: str = "") -> list[str]:
    """The text as a model would stream it: word by word, white space leading; `{input}` in it is `last`."""
    return re.findall(r"\s*\S+|\s+$", text.replace("{input}", input_text))


# What it cost


def count_input_tokens(request: commands.Respond) -> tuple[int, int]:
    """The tokens of all that was said, one a word and one for so much sound, and how many of them are of sound."""
    parts = [part for turn in request.history for part in _parts(turn)]
    words = sum(len(part.text.split()) for part in parts if isinstance(part, history.TextPart | history.RefusalPart))
    sound = sum(_audio_tokens(len(part.pcm), part.rate_hz, INPUT_TOKEN_MS) for part in parts if isinstance(part, history.SpeechPart))
    return words + sound, sound


def _audio_tokens(pcm_bytes: int, rate_hz: int, token_ms: int) -> int:
    """Tokens of sound; the last may be short of its time."""
    return -int(-duration_ms(pcm_bytes, rate_hz) // token_ms)


def _usage(response: _ScriptedResponse, usage: ScriptedUsage | None) -> events.Usage:
    """What the script claims, or else what was heard and said."""
    ask = response.request
    if usage is None:
        heard, heard_sound = count_input_tokens(ask)
        sound = response.audio_tokens()
        usage = ScriptedUsage(
            input_tokens=heard, output_tokens=response.word_count + sound, input_audio_tokens=heard_sound, output_audio_tokens=sound
        )
    return events.Usage(id=ask.id, **structs.asdict(usage))
