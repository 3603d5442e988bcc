"""What was answered in a session, and when: what is compared where a recording is said again."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES
from antiphon.runtime.recording.events import INITIAL_ENCODINGS, OUT, AudioEncoding, audio_encodings, parse_media
from antiphon.runtime.recording.files import EventLine

_SAMPLE_WIDTHS = {"pcm": 2, "pcmu": 1, "pcma": 1, "float32": 4}
"""The bytes of a sample on the wire."""

_TEXT_EVENTS = ("response.output_text.delta", "response.output_audio_transcript.delta")


class RecordedAnswer(Struct):
    """
    An answer.

    Attributes:
        at_s: when it began: when the server said so, or in full duplex with the first that is no listening.
        first_text_s: when the first of its words came, on the clock of the session; None where there are none. Likewise `first_audio_s`.
        sound_ms: how long all of its sound is, whether it was played or not.
        reason: how it ended; None where it didn't.
    """

    at_s: float
    text: str = ""
    first_text_s: float | None = None
    first_audio_s: float | None = None
    audio_ms: float = 0.0
    reason: str | None = None
    is_interrupted: bool = False


def find_answers(lines: Iterable[EventLine], protocol: str, rates_hz: Mapping[str, int]) -> list[RecordedAnswer]:
    """
    The answers of a session, in the order in which they began.

    Args:
        lines: with sound in files, as it is recorded, or in base64, as it is on the wire.
        rates_hz: of the files.
    """
    reader = _AnswerReader(INITIAL_ENCODINGS[protocol][OUT], rates_hz)
    for line in lines:
        if line.direction == OUT:
            reader.read(line.at_s, line.event)
    return list(reader.answers.values())


def find_transcripts(lines: Iterable[EventLine]) -> list[RecordedAnswer]:
    """What was understood in a session of transcription, which has no other answers."""
    found: dict[str, RecordedAnswer] = {}
    for line in lines:
        event, kind = line.event, str(line.event.get("type"))
        if line.direction != OUT or not kind.startswith(_TRANSCRIPTION_PREFIX):
            continue
        answer = found.setdefault(event["item_id"], RecordedAnswer(line.at_s))
        text = event.get("delta") or ("" if answer.text else event.get("transcript"))
        if text:
            answer.text += text
            answer.first_text_s = line.at_s if answer.first_text_s is None else answer.first_text_s
        if not kind.endswith("delta"):
            answer.reason = kind.removeprefix(_TRANSCRIPTION_PREFIX)
    return list(found.values())


_TRANSCRIPTION_PREFIX = "conversation.item.input_audio_transcription."


class _AnswerReader:
    """Reads events of either protocol."""

    def __init__(self, encoding: AudioEncoding, rates_hz: Mapping[str, int]) -> None:
        self.answers: dict[str, RecordedAnswer] = {}
        self._encoding = encoding
        self._rates_hz = rates_hz

    def read(self, at_s: float, event: Mapping[str, Any]) -> None:
        """One more event of the server's."""
        self._encoding = audio_encodings(dict(event)).get(OUT, self._encoding)
        kind = event.get("type")
        if kind == "response.created":
            self._answer(event["response"]["id"], at_s)
        elif kind in _TEXT_EVENTS:
            self._add_text(self._answer(event["response_id"], at_s), event["delta"], at_s)
        elif kind == "response.output_audio.delta":
            self._add_audio(self._answer(event["response_id"], at_s), event["delta"], at_s)
        elif kind == "response.output.delta":
            self._on_output(event, at_s)
        elif kind == "response.done":
            self._on_response_done(event, at_s)

    def _answer(self, response_id: str, at_s: float) -> RecordedAnswer:
        return self.answers.setdefault(response_id, RecordedAnswer(at_s))

    @staticmethod
    def _add_text(answer: RecordedAnswer, text: str, at_s: float) -> None:
        answer.text += text
        if answer.first_text_s is None:
            answer.first_text_s = at_s

    def _add_audio(self, answer: RecordedAnswer, audio: Any, at_s: float) -> None:
        answer.audio_ms += 1000 * self._duration_s(audio)
        if answer.first_audio_s is None:
            answer.first_audio_s = at_s

    def _duration_s(self, audio: Any) -> float:
        if isinstance(audio, str):  # base64
            size_bytes = len(audio) * 3 // 4 - audio[-2:].count("=")
            return size_bytes / (_SAMPLE_WIDTHS[self._encoding.name] * self._encoding.rate_hz)
        media = parse_media(audio)
        return media.bytes / (SAMPLE_BYTES * self._rates_hz.get(media.file, self._encoding.rate_hz)) if media is not None else 0.0

    def _on_output(self, event: Mapping[str, Any], at_s: float) -> None:
        """More of an answer in MiniCPM-o's protocol, or that the model listens."""
        response_id = event["response_id"]
        if event["kind"] != "listen":
            answer = self._answer(response_id, at_s)
            if event.get("text"):
                self._add_text(answer, event["text"], at_s)
            if event.get("audio"):
                self._add_audio(answer, event["audio"], at_s)
        elif event.get("end_of_turn") and response_id in self.answers:
            self._end(self.answers[response_id], "interrupted" if event.get("interrupted") else "end_of_turn")

    def _on_response_done(self, event: Mapping[str, Any], at_s: float) -> None:
        """An answer is over; in chat, one that was not streamed comes with this."""
        told = event.get("response", event)
        answer = self._answer(told.get("id") or told["response_id"], at_s)
        if not answer.text and told.get("text"):
            self._add_text(answer, told["text"], at_s)
        if not answer.audio_ms and told.get("audio") and "response" not in event:
            self._add_audio(answer, told["audio"], at_s)
        self._end(answer, told.get("status") or told.get("reason"))

    @staticmethod
    def _end(answer: RecordedAnswer, reason: str | None) -> None:
        answer.reason = reason
        answer.is_interrupted = reason in ("interrupted", "cancelled")
