"""Who said what in a recording, and how soon: for people to read, and to compare two recordings by."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.records import SessionRecord
from antiphon.runtime.recording.events import IN
from antiphon.runtime.recording.files import Line

Who = Literal["person", "model"]

_SAID, _HEARD, _SEEN = "(said something)", "(sound)", "(picture)"


class Turn(Struct):
    """
    What one side said.

    Attributes:
        at_s: when it began to be said, or to be answered.
        first_s: of an answer, how long it took from the end of the question to the first of it; None where nothing came, and in full
            duplex, where nobody says when a question ends.
        reason: of an answer, how it ended; None where it didn't.
    """

    who: Who
    text: str
    at_s: float
    first_s: float | None = None
    reason: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the text is what was said, and does not only stand for it."""
        return self.text != _SAID


def turns_of(lines: Iterable[Line]) -> list[Turn]:
    """The turns of a session, in the order in which they began."""
    reader = _Reader()
    for line in lines:
        reader.read(line)
    return [turn for turn in reader.turns if turn.text or turn.who == "model"]


class _Reader:
    """Reads events of either protocol."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._answers: dict[str, Turn] = {}
        self._spoken: dict[str, Turn] = {}
        self._began_at_s: dict[str, float] = {}
        self._asked_at_s: float | None = None
        self._at_s = 0.0
        self._said: dict[str, Callable[[Any], None]] = {
            "conversation.item.create": self._item,
            "response.create": self._asked,
            "input_audio_buffer.commit": self._asked,
            "input.append": self._append,
        }
        self._told: dict[str, Callable[[Any], None]] = {
            "input_audio_buffer.speech_started": self._started,
            "input_audio_buffer.speech_stopped": self._asked,
            "input_audio_buffer.committed": self._committed,
            "conversation.item.input_audio_transcription.completed": self._transcribed,
            "response.created": self._created,
            "response.output_text.delta": lambda event: self._more(event["response_id"], event["delta"]),
            "response.output_audio_transcript.delta": lambda event: self._more(event["response_id"], event["delta"]),
            "response.output_audio.delta": lambda event: self._more(event["response_id"], ""),
            "response.output.delta": self._output,
            "response.done": self._done,
        }

    def read(self, line: Line) -> None:
        """One more event."""
        self._at_s = line.at_s
        read = (self._said if line.direction == IN else self._told).get(line.event.get("type"))
        if read is not None:
            read(line.event)

    def _asked(self, _event: Any) -> None:
        self._asked_at_s = self._at_s

    def _person(self, text: str) -> None:
        self.turns.append(Turn("person", text, self._at_s))

    def _item(self, event: Any) -> None:
        item = event["item"]
        if item.get("role") == "user":
            self._person(_words(item.get("content", ())))

    def _append(self, event: Any) -> None:
        messages = event["input"].get("messages")
        if messages:
            self._asked_at_s = self._at_s
            content = messages[-1].get("content")
            self._person(content if isinstance(content, str) else _words(content))

    def _started(self, event: Any) -> None:
        self._began_at_s[event["item_id"]] = self._at_s

    def _committed(self, event: Any) -> None:
        item_id = event["item_id"]
        self._spoken[item_id] = Turn("person", _SAID, self._began_at_s.get(item_id, self._at_s))
        self.turns.append(self._spoken[item_id])

    def _transcribed(self, event: Any) -> None:
        if event["item_id"] in self._spoken and event.get("transcript"):
            self._spoken[event["item_id"]].text = event["transcript"]

    def _answer(self, response_id: str) -> Turn:
        if response_id not in self._answers:
            answer = self._answers[response_id] = Turn("model", "", self._at_s)
            self.turns.append(answer)
        return self._answers[response_id]

    def _created(self, event: Any) -> None:
        self._answer(event["response"]["id"])

    def _more(self, response_id: str, text: str) -> None:
        answer = self._answer(response_id)
        answer.text += text
        if answer.first_s is None and self._asked_at_s is not None:
            answer.first_s = round(self._at_s - self._asked_at_s, 4)

    def _output(self, event: Any) -> None:
        if event["kind"] != "listen":
            self._more(event["response_id"], event.get("text") or "")
        elif event.get("end_of_turn") and event["response_id"] in self._answers:
            self._answers[event["response_id"]].reason = "interrupted" if event.get("interrupted") else "end_of_turn"

    def _done(self, event: Any) -> None:
        told = event.get("response", event)
        answer = self._answer(told.get("id") or told["response_id"])
        answer.reason = told.get("status") or told.get("reason")
        if not answer.text and told.get("text"):
            self._more(told["response_id"], told["text"])


def _words(content: Sequence[Any]) -> str:
    """The words of a message; what it has besides is only named."""
    named = {"image": _SEEN, "image_url": _SEEN, "input_image": _SEEN, "video": _SEEN, "audio": _HEARD, "input_audio": _HEARD}
    said = (part.get("text") or part.get("transcript") or named.get(part.get("type"), "") for part in content)
    return " ".join(text for text in said if text)


_NAMES: dict[Who, str] = {"person": "Person", "model": "Model"}


def transcript(record: SessionRecord, turns: Iterable[Turn]) -> str:
    """A session for people to read, in Markdown."""
    facts = f"{record.protocol}, {record.mode}, model `{record.model}`, {record.duration_ms / 1000:.1f} s, ended: {record.reason or '?'}"
    ends = [f"The recording ends before the session: {record.truncated}."] if record.truncated else []
    told = [f"**{_clock(turn.at_s)} {_NAMES[turn.who]}**{_timed(turn)}: {turn.text or '(nothing)'}" for turn in turns]
    return "\n\n".join([f"# Session {record.id}", facts, *told, *ends]) + "\n"


def _timed(turn: Turn) -> str:
    return "" if turn.first_s is None else f" (after {turn.first_s:.2f} s)"


def _clock(at_s: float) -> str:
    return f"{int(at_s // 60):02}:{at_s % 60:04.1f}"
