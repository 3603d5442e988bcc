"""How a MiniCPM-o session is shown: the queue, the session, whether the model listens, and what it says as it comes."""

from typing import Any

from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.duplex_record import DuplexAnswer, DuplexQueuePosition, DuplexTranscript
from antiphon.cli.voice.render import TerminalTalkRenderer
from antiphon.cli.voice.transcript import TextChunk
from antiphon.wire.minicpmo.server_events import OutputDelta, SessionCreated, SessionQueued, SessionQueueUpdate, SessionWarning

_DUPLEX_LATENCY_LABELS = {"first_text": "first text", "first_audio": "first audio"}


class TerminalDuplexRenderer:
    """Shows a session on the standard output."""

    def __init__(self, shell: Shell) -> None:
        self._renderer = TerminalTalkRenderer(shell)
        self._queue_position: DuplexQueuePosition | None = None
        self._has_listened = False

    def show(self, chunk: TextChunk) -> None:
        """Show some words."""
        self._renderer.show(chunk)

    def show_state(self, event: Any, transcript: DuplexTranscript) -> None:
        """Tell of what is no words: the queue, the session's beginning and nearing end, and that the model listens."""
        match event:
            case SessionQueued() | SessionQueueUpdate() if transcript.queue_positions[-1] != self._queue_position:
                self._queue_position = transcript.queue_positions[-1]
                self._renderer.remark(format_queue_position(self._queue_position))
            case SessionCreated():
                self._renderer.remark(f"session {event.session_id}")
            case SessionWarning():
                self._renderer.remark(f"the session ends in {event.remaining_s:.0f} s")
            case OutputDelta(kind="listen") if not self._has_listened and not transcript.answers:
                self._has_listened = True
                self._renderer.remark("it listens")

    def show_latencies(self, transcript: DuplexTranscript, first: int) -> None:
        """Show how long the answer to a recording took, or the first of several that came after its end."""
        answers = transcript.answers[first:]
        told = next((answer for answer in answers if answer.first_output_s >= transcript.speech_end_s), answers[-1] if answers else None)
        if told is not None:
            self._renderer.remark(format_duplex_latencies(told))


class SilentDuplexRenderer:
    """Shows nothing."""

    def show(self, chunk: TextChunk) -> None:
        """Nobody reads them."""

    def show_state(self, event: Any, transcript: DuplexTranscript) -> None:
        """Nobody wants to know."""

    def show_latencies(self, transcript: DuplexTranscript, first: int) -> None:
        """Nobody reads how long it took."""


def format_queue_position(position: DuplexQueuePosition) -> str:
    """A place in the queue, in words."""
    wait = "" if position.wait_s is None else f", about {position.wait_s:.0f} s"
    return f"waits: number {position.position} of {position.queue_length}{wait}"


def format_duplex_latencies(answer: DuplexAnswer) -> str:
    """How long the answer took, step by step from the end of the speech."""
    waits = answer.latencies_ms
    steps = (f"{called} {'-' if (ms := waits[name]) is None else f'{ms:.0f}'}" for name, called in _DUPLEX_LATENCY_LABELS.items())
    return " -> ".join(("speech end", *steps)) + " ms"
