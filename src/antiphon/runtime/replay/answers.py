"""What was answered in a session, and when: what is compared where a recording is said again."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES
from antiphon.runtime.recording.events import BEGINS, OUT, Form, forms_in, media_of
from antiphon.runtime.recording.files import Line

_WIDTHS = {"pcm": 2, "pcmu": 1, "pcma": 1, "float32": 4}
"""The bytes of a sample on the wire."""

_WORDS = ("response.output_text.delta", "response.output_audio_transcript.delta")


class Answer(Struct):
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
    sound_ms: float = 0.0
    reason: str | None = None
    interrupted: bool = False


def answers_of(lines: Iterable[Line], protocol: str, rates_hz: Mapping[str, int]) -> list[Answer]:
    """
    The answers of a session, in the order in which they began.

    Args:
        lines: with sound in files, as it is recorded, or in base64, as it is on the wire.
        rates_hz: of the files.
    """
    reader = _Reader(BEGINS[protocol][OUT], rates_hz)
    for line in lines:
        if line.direction == OUT:
            reader.read(line.at_s, line.event)
    return list(reader.answers.values())


def transcripts_of(lines: Iterable[Line]) -> list[Answer]:
    """What was understood in a session of transcription, which has no other answers."""
    found: dict[str, Answer] = {}
    for line in lines:
        event, kind = line.event, str(line.event.get("type"))
        if line.direction != OUT or not kind.startswith(_HEARD):
            continue
        answer = found.setdefault(event["item_id"], Answer(line.at_s))
        text = event.get("delta") or ("" if answer.text else event.get("transcript"))
        if text:
            answer.text += text
            answer.first_text_s = line.at_s if answer.first_text_s is None else answer.first_text_s
        if not kind.endswith("delta"):
            answer.reason = kind.removeprefix(_HEARD)
    return list(found.values())


_HEARD = "conversation.item.input_audio_transcription."


class _Reader:
    """Reads events of either protocol."""

    def __init__(self, form: Form, rates_hz: Mapping[str, int]) -> None:
        self.answers: dict[str, Answer] = {}
        self._form = form
        self._rates_hz = rates_hz

    def read(self, at_s: float, event: Mapping[str, Any]) -> None:
        """One more event of the server's."""
        self._form = forms_in(dict(event)).get(OUT, self._form)
        kind = event.get("type")
        if kind == "response.created":
            self._answer(event["response"]["id"], at_s)
        elif kind in _WORDS:
            self._words(self._answer(event["response_id"], at_s), event["delta"], at_s)
        elif kind == "response.output_audio.delta":
            self._sound(self._answer(event["response_id"], at_s), event["delta"], at_s)
        elif kind == "response.output.delta":
            self._output(event, at_s)
        elif kind == "response.done":
            self._done(event, at_s)

    def _answer(self, response_id: str, at_s: float) -> Answer:
        return self.answers.setdefault(response_id, Answer(at_s))

    @staticmethod
    def _words(answer: Answer, text: str, at_s: float) -> None:
        answer.text += text
        if answer.first_text_s is None:
            answer.first_text_s = at_s

    def _sound(self, answer: Answer, sound: Any, at_s: float) -> None:
        answer.sound_ms += 1000 * self._lasts_s(sound)
        if answer.first_audio_s is None:
            answer.first_audio_s = at_s

    def _lasts_s(self, sound: Any) -> float:
        if isinstance(sound, str):  # base64
            size_bytes = len(sound) * 3 // 4 - sound[-2:].count("=")
            return size_bytes / (_WIDTHS[self._form.name] * self._form.rate_hz)
        media = media_of(sound)
        return media.bytes / (SAMPLE_BYTES * self._rates_hz.get(media.file, self._form.rate_hz)) if media is not None else 0.0

    def _output(self, event: Mapping[str, Any], at_s: float) -> None:
        """More of an answer in MiniCPM-o's protocol, or that the model listens."""
        response_id = event["response_id"]
        if event["kind"] != "listen":
            answer = self._answer(response_id, at_s)
            if event.get("text"):
                self._words(answer, event["text"], at_s)
            if event.get("audio"):
                self._sound(answer, event["audio"], at_s)
        elif event.get("end_of_turn") and response_id in self.answers:
            self._end(self.answers[response_id], "interrupted" if event.get("interrupted") else "end_of_turn")

    def _done(self, event: Mapping[str, Any], at_s: float) -> None:
        """An answer is over; in chat, one that was not streamed comes with this."""
        told = event.get("response", event)
        answer = self._answer(told.get("id") or told["response_id"], at_s)
        if not answer.text and told.get("text"):
            self._words(answer, told["text"], at_s)
        if not answer.sound_ms and told.get("audio") and "response" not in event:
            self._sound(answer, told["audio"], at_s)
        self._end(answer, told.get("status") or told.get("reason"))

    @staticmethod
    def _end(answer: Answer, reason: str | None) -> None:
        answer.reason = reason
        answer.interrupted = reason in ("interrupted", "cancelled")
