"""How a conversation is shown: who says what, word by word."""

import re
import textwrap

from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.audio import InputRecording
from antiphon.cli.voice.transcript import MODEL, USER, TalkTurn, TextChunk

_INDENT = 10
_MAX_COLUMNS = 110
"""Longer lines are hard to read."""

_TALK_LATENCY_LABELS = {"transcript": "transcript", "first_token": "first token", "first_audio": "first audio"}
"""In the order in which they come about, and as they are called."""


class TerminalTalkRenderer:
    """
    Shows words as they come, each speaker's in lines of their own.

    What you said may become known only while the model speaks; it is then shown once the model is done.

    Args:
        names_recordings: whether they are told apart.
    """

    def __init__(self, shell: Shell, *, names_recordings: bool = False) -> None:
        self._print = shell.say
        self._columns = min(_MAX_COLUMNS, shell.columns)
        self._names_recordings = names_recordings
        self._speaker: str | None = None
        self._column = 0
        self._word = ""
        self._needs_new_line = False
        self._deferred_chunks: list[TextChunk] = []

    def show(self, chunk: TextChunk) -> None:
        """Show some words."""
        if self._speaker == MODEL and chunk.speaker == USER:
            self._deferred_chunks.append(chunk)
            return
        if chunk.text:
            self._switch_speaker(chunk.speaker)
            self._append_text(chunk.text)
        if chunk.is_last:
            self.end()

    def begin_recording(self, recording: InputRecording) -> None:
        """Name what will be said, where there are several."""
        if self._names_recordings:
            self.remark(recording.name)

    def show_latencies(self, turn: TalkTurn) -> None:
        """Show how long an answer took."""
        self.remark(format_talk_latencies(turn))

    def remark(self, text: str) -> None:
        """Show a line that nobody said."""
        self.end()
        indent = " " * _INDENT
        self._print(textwrap.fill(text, self._columns, initial_indent=indent, subsequent_indent=indent))

    def end(self) -> None:
        """End what is being said."""
        self._end_line()
        late, self._deferred_chunks = self._deferred_chunks, []
        for words in late:
            self.show(words)
        self._end_line()

    def _end_line(self) -> None:
        if self._speaker is not None:
            self._print_word()
            self._print()
            self._speaker = None

    def _switch_speaker(self, speaker: str) -> None:
        if self._speaker != speaker:
            self.end()
            self._speaker, self._column, self._needs_new_line = speaker, _INDENT, False
            self._print(f"  {speaker:>6}  ", end="")

    def _append_text(self, text: str) -> None:
        """A word is put where it fits once it is whole, so the last one waits for what comes after it."""
        for part in re.findall(r"\s+|\S+", text):
            if part.isspace():
                self._print_word()
                self._needs_new_line |= "\n" in part
            else:
                self._word += part

    def _print_word(self) -> None:
        word, self._word = self._word, ""
        if not word:
            return
        is_first = self._column == _INDENT
        if not is_first and (self._needs_new_line or self._column + 1 + len(word) > self._columns):
            self._print()
            self._print(" " * _INDENT, end="")
            self._column, is_first = _INDENT, True
        self._print(word if is_first else f" {word}", end="")
        self._column += len(word) + (not is_first)
        self._needs_new_line = False


def format_talk_latencies(turn: TalkTurn) -> str:
    """How long the answer took from the end of the speech to each step."""
    waits = turn.latencies_ms
    return f"speech end -> {', '.join(f'{called} {_format_ms(waits[name])}' for name, called in _TALK_LATENCY_LABELS.items())} ms"


def _format_ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.0f}"


class SilentTalkRenderer:
    """Shows nothing."""

    def show(self, chunk: TextChunk) -> None:
        """Nobody reads them."""

    def begin_recording(self, recording: InputRecording) -> None:
        """Nobody reads its name."""

    def show_latencies(self, turn: TalkTurn) -> None:
        """Nobody reads how long it took."""
