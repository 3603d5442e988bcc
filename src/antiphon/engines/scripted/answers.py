"""The answers of a scripted engine: which one is chosen, and its events."""

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct, structs

from antiphon.audio import INPUT_MS_PER_TOKEN, OUTPUT_MS_PER_TOKEN, audio_tokens, duration_ms
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.options import Voice
from antiphon.engines.scripted.script import Script, ScriptAnswer, ScriptedUsage, ScriptLine
from antiphon.engines.scripted.voice import ScriptedRecordings, audio_events, spoken_events, tone

ECHO_ANSWER = ScriptAnswer(say="{input}")

_CountedEvent = events.TextDelta | events.ReasoningDelta | events.RefusalDelta | events.ToolArgumentsDelta | events.AudioTranscriptDelta


class _ScriptedResponse(Struct):
    """
    An answer under way.

    Attributes:
        input_text: the text of the turn that it answers.
        word_count: how many words it has so far.
        reasoning_count: how many of them are of reasoning.
        audio_bytes: how much audio it has so far.
        call_count: how many tool calls it has so far.
    """

    request: commands.Respond
    recordings: ScriptedRecordings
    input_text: str
    word_count: int = 0
    reasoning_count: int = 0
    audio_bytes: int = 0
    call_count: int = 0

    def count(self, event: events.EngineEvent) -> None:
        if isinstance(event, events.AudioDelta):
            self.audio_bytes += len(event.pcm)
        self.call_count += isinstance(event, events.ToolCallStarted)
        self.word_count += isinstance(event, _CountedEvent)
        self.reasoning_count += isinstance(event, events.ReasoningDelta)

    def exceeds_limit(self, event: events.EngineEvent) -> bool:
        """Whether the token limit leaves no room for an event; a call needs room for a word of its arguments."""
        limit = self.request.sampling.max_tokens
        if limit is None:
            return False
        if isinstance(event, events.AudioDelta):
            return self.word_count + self.audio_tokens(len(event.pcm)) > limit
        return isinstance(event, _CountedEvent | events.ToolCallStarted) and self.word_count + self.audio_tokens() >= limit

    def audio_tokens(self, more_bytes: int = 0) -> int:
        voice = self.request.voice
        return audio_tokens(duration_ms(self.audio_bytes + more_bytes, voice.rate_hz), OUTPUT_MS_PER_TOKEN) if voice is not None else 0


def response_steps(
    script: Script,
    recordings: ScriptedRecordings,
    request: commands.Respond,
    transcripts: Mapping[str, str],
    answer: ScriptAnswer | None = None,
) -> Iterator[events.EngineEvent | float]:
    """
    The events of an answer up to its token limit, and pauses in seconds; a terminal event comes last.

    Args:
        transcripts: of the turns so far, by their ids.
        answer: the one to give; None for the first that matches.
    """
    match, input_text = _choose_answer(script, request, transcripts)
    answer = answer or match
    response = _ScriptedResponse(request, recordings, input_text)
    usage: ScriptedUsage | None = None
    reason: events.EndReason = "stop"
    for line in answer.every_line():
        if line.failure is not None:
            yield events.ResponseFailed(id=request.id, **structs.asdict(line.failure))
            return
        if line.finish_reason is not None:
            reason = line.finish_reason
            break
        usage = line.usage or usage
        if line.wait_ms is not None:
            yield line.wait_ms / 1000
        for event in _line_events(line, response):
            if response.exceeds_limit(event):
                yield from _end_events(response, usage, "length")
                return
            response.count(event)
            yield event
    yield from _end_events(response, usage, reason)


def _end_events(response: _ScriptedResponse, usage: ScriptedUsage | None, reason: events.EndReason) -> Iterator[events.EngineEvent]:
    yield _usage(response, usage)
    yield events.ResponseEnded(response.request.id, reason)


def _choose_answer(script: Script, request: commands.Respond, transcripts: Mapping[str, str]) -> tuple[ScriptAnswer, str]:
    item = request.history[-1] if request.history else history.Message("user", ())
    text = _item_text(item, transcripts)
    kind = "result" if isinstance(item, history.ToolResult) else "message"
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
    """The transcript of speech for which the script has none."""
    return f"speech of {ms:.0f} ms"


# The events of a line

_TEXT_EVENTS: dict[str, Callable[[str, str], events.EngineEvent]] = {
    "text": events.TextDelta,
    "refusal": events.RefusalDelta,
    "reasoning": events.ReasoningDelta,
    "summary": lambda id, piece: events.ReasoningDelta(id, piece, summary=True),
}


def _line_events(line: ScriptLine, response: _ScriptedResponse) -> Iterator[events.EngineEvent]:
    id, voice = response.request.id, response.request.voice
    if line.error is not None:
        yield events.EngineError(**structs.asdict(line.error))
    if line.call is not None:
        yield from _call_events(line, line.call, response)
    if line.encrypted_content is not None:
        yield events.EncryptedReasoning(id, line.encrypted_content)
    if line.annotation is not None:
        yield events.AnnotationAdded(id, line.annotation)
    if line.metrics is not None:
        yield events.EngineMetrics(id, line.metrics)
    if voice is not None:
        yield from _speech_events(line, response, voice)
    yield from _text_events(line, response)
    if line.summary is not None:
        yield events.ReasoningBoundary(id)


def _text_events(line: ScriptLine, response: _ScriptedResponse) -> Iterator[events.EngineEvent]:
    id, voice = response.request.id, response.request.voice
    for field, new_event in _TEXT_EVENTS.items():
        if (text := getattr(line, field)) is not None and (voice is None or field != "text"):
            pieces = split_words(text, response.input_text)
            if field == "text" and (limit := response.request.sampling.top_logprobs) is not None:
                yield from (events.TextDelta(id, piece, (certain_token(piece, limit),)) for piece in pieces)
            else:
                yield from (new_event(id, piece) for piece in pieces)


def _speech_events(line: ScriptLine, response: _ScriptedResponse, voice: Voice) -> Iterator[events.EngineEvent]:
    id = response.request.id
    recording: bytes | None = None
    if line.sound is not None:
        recording = response.recordings.play(line.sound, voice)
    elif line.aloud_ms is not None:
        recording = tone(line.aloud_ms, voice)
    words = split_words(line.text or "", response.input_text)
    if words:
        yield from spoken_events(id, words, recording, voice)
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
    arguments: object = line.input if line.input is not None else line.arguments if line.arguments is not None else {}
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def certain_token(piece: str, alternatives: int = 0) -> events.TokenLogprob:
    """A word as a token that had no alternative but itself: its log probability is 0."""
    token = events.TokenCandidate(piece, 0.0, tuple(piece.encode()))
    return events.TokenLogprob(token, (token,)[:alternatives])


def split_words(text: str, input_text: str = "") -> list[str]:
    """
    The text as a model would stream it: word by word, with leading white space; `{input}` stands for `input_text`.
    """
    return re.findall(r"\s*\S+|\s+$", text.replace("{input}", input_text))


# Usage


def count_input_tokens(request: commands.Respond) -> tuple[int, int]:
    """
    The tokens of the history, one per word and one per `INPUT_MS_PER_TOKEN` of audio, and how many of them are audio
    tokens.
    """
    parts = [part for item in request.history for part in _parts(item)]
    words = sum(len(part.text.split()) for part in parts if isinstance(part, history.TextPart | history.RefusalPart))
    speech = [duration_ms(len(part.pcm), part.rate_hz) for part in parts if isinstance(part, history.SpeechPart)]
    audio = sum(audio_tokens(ms, INPUT_MS_PER_TOKEN) for ms in speech)
    return words + audio, audio


def _usage(response: _ScriptedResponse, usage: ScriptedUsage | None) -> events.Usage:
    """The usage that the script claims, or else what was heard and said."""
    if usage is None:
        input_tokens, input_audio = count_input_tokens(response.request)
        output_audio = response.audio_tokens()
        usage = ScriptedUsage(
            input_tokens=input_tokens,
            output_tokens=response.word_count + output_audio,
            reasoning_tokens=response.reasoning_count,
            input_audio_tokens=input_audio,
            output_audio_tokens=output_audio,
        )
    return events.Usage(id=response.request.id, **structs.asdict(usage))
