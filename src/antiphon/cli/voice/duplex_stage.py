"""How a MiniCPM-o session is shown: the queue, the session, whether the model listens, and what it says as it comes."""

from typing import Any

from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.duplex_record import Answer, Place, Record
from antiphon.cli.voice.render import Stage
from antiphon.cli.voice.transcript import Words
from antiphon.wire.minicpmo.server_events import OutputDelta, SessionCreated, SessionQueued, SessionQueueUpdate, SessionWarning

_WAITS = {"first_text": "first text", "first_audio": "first audio"}


class DuplexStage:
    """Shows a session on the standard output."""

    def __init__(self, shell: Shell) -> None:
        self._stage = Stage(shell)
        self._place: Place | None = None
        self._has_listened = False

    def show(self, words: Words) -> None:
        """Show some words."""
        self._stage.show(words)

    def state(self, event: Any, record: Record) -> None:
        """Tell of what is no words: the queue, the session's beginning and nearing end, and that the model listens."""
        match event:
            case SessionQueued() | SessionQueueUpdate() if record.places[-1] != self._place:
                self._place = record.places[-1]
                self._stage.remark(place_told(self._place))
            case SessionCreated():
                self._stage.remark(f"session {event.session_id}")
            case SessionWarning():
                self._stage.remark(f"the session ends in {event.remaining_s:.0f} s")
            case OutputDelta(kind="listen") if not self._has_listened and not record.answers:
                self._has_listened = True
                self._stage.remark("it listens")

    def over(self, record: Record, first: int) -> None:
        """Show how long the answer to a recording took, or the first of several that came after its end."""
        answers = record.answers[first:]
        told = next((answer for answer in answers if answer.began_s >= record.speech_end_s), answers[-1] if answers else None)
        if told is not None:
            self._stage.remark(latencies(told))


class Unseen:
    """Shows nothing."""

    def show(self, words: Words) -> None:
        """Nobody reads them."""

    def state(self, event: Any, record: Record) -> None:
        """Nobody wants to know."""

    def over(self, record: Record, first: int) -> None:
        """Nobody reads how long it took."""


def place_told(place: Place) -> str:
    """A place in the queue, in words."""
    wait = "" if place.wait_s is None else f", about {place.wait_s:.0f} s"
    return f"waits: number {place.position} of {place.queue_length}{wait}"


def latencies(answer: Answer) -> str:
    """How long the answer took, step by step from the end of the speech."""
    waits = answer.waits_ms
    steps = (f"{called} {'-' if (ms := waits[name]) is None else f'{ms:.0f}'}" for name, called in _WAITS.items())
    return " -> ".join(("speech end", *steps)) + " ms"
