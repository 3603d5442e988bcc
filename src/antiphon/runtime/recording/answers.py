"""The responses in a recorded session of either protocol: their text, the duration of their audio, and their times."""

from collections.abc import Iterable, Mapping
from typing import cast

from msgspec import Struct, field

from antiphon.audio import SAMPLE_BYTES
from antiphon.runtime.recording.events import INITIAL_ENCODINGS, OUT, PCM_24, AudioEncoding, EventFields, audio_encodings, parse_media
from antiphon.runtime.recording.files import EventLine

_SAMPLE_WIDTHS = {"pcm": 2, "pcmu": 1, "pcma": 1, "float32": 4}
"""The bytes of a sample on the wire, by the encoding's name. Source: ITU-T Recommendation G.711 (`pcmu`, `pcma`)."""

_TEXT_EVENTS = ("response.output_text.delta", "response.output_audio_transcript.delta")
_TRANSCRIPTION_PREFIX = "conversation.item.input_audio_transcription."


class RecordedAnswer(Struct):
    """
    A response, or in a transcription session a transcript.

    Attributes:
        id: of the response; in a transcription session, of the item.
        at_s: when it began: at `response.created`, or in full duplex at the first output that is not listening.
        first_text_s: when its first text came, on the session's clock; None without text. `first_audio_s` is the same
            for audio.
        audio_ms: the duration of all its audio, played or not.
        reason: how it ended; None if it didn't.
        ended_at_s: when that was.
        text_marks: how many characters had come before each piece of text, and how much audio. Words come before the
            audio in which they are heard (docs/decisions/0015).
        truncated_ms: after how much of its audio the client stopped playing, if it said so.
    """

    id: str
    at_s: float
    text: str = ""
    first_text_s: float | None = None
    first_audio_s: float | None = None
    audio_ms: float = 0.0
    reason: str | None = None
    ended_at_s: float | None = None
    text_marks: list[tuple[int, float]] = field(default_factory=list)
    truncated_ms: float | None = None

    @property
    def first_output_s(self) -> float | None:
        """When its first text or audio came; None if nothing came."""
        return min((at_s for at_s in (self.first_text_s, self.first_audio_s) if at_s is not None), default=None)

    @property
    def is_interrupted(self) -> bool:
        """Whether the person interrupted it: while it was made, or while it was played."""
        # Clients count whole milliseconds: one that has played everything must not count as interrupted.
        is_cut_short = self.truncated_ms is not None and self.truncated_ms < int(self.audio_ms)
        return is_cut_short or self.reason in ("interrupted", "cancelled")

    def add_text(self, text: str, at_s: float) -> None:
        """Append text that came at that time."""
        self.text_marks.append((len(self.text), self.audio_ms))
        self.text += text
        self.first_text_s = at_s if self.first_text_s is None else self.first_text_s


def find_answers(lines: Iterable[EventLine], protocol: str, rates_hz: Mapping[str, int]) -> list[RecordedAnswer]:
    """
    The responses of a session, in the order in which they began.

    Args:
        lines: with audio as references, as recorded, or in base64, as on the wire.
        rates_hz: sample rates by audio file.
    """
    reader = AnswerReader(INITIAL_ENCODINGS[protocol][OUT], rates_hz)
    for line in lines:
        if line.direction == OUT:
            reader.read(line.at_s, line.fields)
    return list(reader.answers.values())


def find_transcripts(lines: Iterable[EventLine]) -> list[RecordedAnswer]:
    """The transcripts of a transcription session, which has no other responses."""
    answers: dict[str, RecordedAnswer] = {}
    for line in lines:
        event, kind = line.fields, line.fields.get("type", "")
        if line.direction != OUT or not kind.startswith(_TRANSCRIPTION_PREFIX):
            continue
        answer = answers.setdefault(event["item_id"], RecordedAnswer(event["item_id"], line.at_s))
        text = event.get("delta") or ("" if answer.text else event.get("transcript"))
        if text:
            answer.add_text(cast(str, text), line.at_s)
        if not kind.endswith("delta"):
            answer.reason = kind.removeprefix(_TRANSCRIPTION_PREFIX)
    return list(answers.values())


class AnswerReader:
    """
    Collects the responses in a server's events.

    Args:
        encoding: of the audio until an event sets another; only durations depend on it.
        rates_hz: sample rates by audio file; only durations depend on them.

    Attributes:
        answers: by the id of the response, in the order in which they began.
    """

    def __init__(self, encoding: AudioEncoding = PCM_24, rates_hz: Mapping[str, int] | None = None) -> None:
        self.answers: dict[str, RecordedAnswer] = {}
        self._encoding = encoding
        self._rates_hz = rates_hz or {}
        self._item_starts: dict[str, tuple[RecordedAnswer, float]] = {}  # by item: its response, and the audio before it

    def read(self, at_s: float, event: EventFields) -> RecordedAnswer | None:
        """Read the next event; returns the response that it belongs to."""
        self._encoding = audio_encodings(event).get(OUT, self._encoding)
        kind = event.get("type")
        if kind == "response.created":
            return self._answer(event["response"]["id"], at_s)
        if kind in _TEXT_EVENTS:
            answer = self._answer(event["response_id"], at_s)
            answer.add_text(cast(str, event["delta"]), at_s)
            return answer
        if kind == "response.output_audio.delta":
            answer = self._answer(event["response_id"], at_s)
            self._item_starts.setdefault(event.get("item_id", ""), (answer, answer.audio_ms))
            self._add_audio(answer, event["delta"], at_s)
            return answer
        if kind == "conversation.item.truncated":
            return self._read_truncation(event)
        if kind == "response.output.delta":
            return self._read_output(event, at_s)
        return self._read_done(event, at_s) if kind == "response.done" else None

    def _answer(self, response_id: str, at_s: float) -> RecordedAnswer:
        return self.answers.setdefault(response_id, RecordedAnswer(response_id, at_s))

    def _read_truncation(self, event: EventFields) -> RecordedAnswer | None:
        answer, start_ms = self._item_starts.get(event["item_id"], (None, 0.0))
        if answer is not None:
            answer.truncated_ms = start_ms + event.get("audio_end_ms", 0)
        return answer

    def _add_audio(self, answer: RecordedAnswer, audio: str | dict[str, object], at_s: float) -> None:
        answer.audio_ms += 1000 * self._duration_s(audio)
        answer.first_audio_s = at_s if answer.first_audio_s is None else answer.first_audio_s

    def _duration_s(self, audio: str | dict[str, object]) -> float:
        if isinstance(audio, str):  # base64: four characters for three bytes, `=` for each that is missing (RFC 4648, section 4)
            size_bytes = len(audio) * 3 // 4 - audio[-2:].count("=")
            return size_bytes / (_SAMPLE_WIDTHS[self._encoding.name] * self._encoding.rate_hz)
        media = parse_media(audio)
        return media.bytes / (SAMPLE_BYTES * self._rates_hz.get(media.file, self._encoding.rate_hz)) if media is not None else 0.0

    def _read_output(self, event: EventFields, at_s: float) -> RecordedAnswer | None:
        """MiniCPM-o: more output, or that the model listens, which may end a response in full duplex."""
        response_id = event["response_id"]
        if event["kind"] == "listen":
            answer = self.answers.get(response_id)
            if answer is not None and event.get("end_of_turn"):
                answer.reason, answer.ended_at_s = "interrupted" if event.get("interrupted") else "end_of_turn", at_s
            return answer
        answer = self._answer(response_id, at_s)
        if text := event.get("text"):
            answer.add_text(text, at_s)
        if audio := event.get("audio"):
            self._add_audio(answer, audio, at_s)
        return answer

    def _read_done(self, event: EventFields, at_s: float) -> RecordedAnswer:
        """The end of a response. In MiniCPM-o's chat mode without streaming it has the whole output."""
        if "response" in event:
            response = event["response"]
            answer = self._answer(response["id"], at_s)
            answer.reason, answer.ended_at_s = response.get("status"), at_s
            return answer
        answer = self._answer(event["response_id"], at_s)
        if not answer.text and (text := event.get("text")):
            answer.add_text(text, at_s)
        if not answer.audio_ms and (audio := event.get("audio")):
            self._add_audio(answer, audio, at_s)
        answer.reason, answer.ended_at_s = event.get("reason"), at_s
        return answer
