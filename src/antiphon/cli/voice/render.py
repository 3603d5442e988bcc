"""How a conversation is shown: who says what, word by word."""

import re
import textwrap

from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.audio import Recording
from antiphon.cli.voice.transcript import MODEL, YOU, Turn, Words

_INDENT = 10
_WIDEST = 110
"""Longer lines are hard to read."""

_WAITS = {"transcript": "transcript", "first_token": "first token", "first_audio": "first audio"}
"""In the order in which they come about, and as they are called."""


class Stage:
    """
    Shows words as they come, each speaker's in lines of their own.

    What you said may become known only while the model speaks; it is then shown once the model is done.

    Args:
        names_recordings: whether they are told apart.
    """

    def __init__(self, shell: Shell, *, names_recordings: bool = False) -> None:
        self._print = shell.say
        self._columns = min(_WIDEST, shell.columns)
        self._names_recordings = names_recordings
        self._who: str | None = None
        self._column = 0
        self._word = ""
        self._line_is_over = False
        self._late: list[Words] = []

    def show(self, words: Words) -> None:
        """Show some words."""
        if self._who == MODEL and words.who == YOU:
            self._late.append(words)
            return
        if words.text:
            self._speaks(words.who)
            self._put(words.text)
        if words.is_last:
            self.end()

    def begin(self, recording: Recording) -> None:
        """Name what will be said, where there are several."""
        if self._names_recordings:
            self.remark(recording.name)

    def over(self, turn: Turn) -> None:
        """Show how long an answer took."""
        self.remark(latencies(turn))

    def remark(self, text: str) -> None:
        """Show a line that nobody said."""
        self.end()
        indent = " " * _INDENT
        self._print(textwrap.fill(text, self._columns, initial_indent=indent, subsequent_indent=indent))

    def end(self) -> None:
        """End what is being said."""
        self._close()
        late, self._late = self._late, []
        for words in late:
            self.show(words)
        self._close()

    def _close(self) -> None:
        if self._who is not None:
            self._put_word()
            self._print()
            self._who = None

    def _speaks(self, who: str) -> None:
        if self._who != who:
            self.end()
            self._who, self._column, self._line_is_over = who, _INDENT, False
            self._print(f"  {who:>6}  ", end="")

    def _put(self, text: str) -> None:
        """A word is put where it fits once it is whole, so the last one waits for what comes after it."""
        for part in re.findall(r"\s+|\S+", text):
            if part.isspace():
                self._put_word()
                self._line_is_over |= "\n" in part
            else:
                self._word += part

    def _put_word(self) -> None:
        word, self._word = self._word, ""
        if not word:
            return
        is_first = self._column == _INDENT
        if not is_first and (self._line_is_over or self._column + 1 + len(word) > self._columns):
            self._print()
            self._print(" " * _INDENT, end="")
            self._column, is_first = _INDENT, True
        self._print(word if is_first else f" {word}", end="")
        self._column += len(word) + (not is_first)
        self._line_is_over = False


def latencies(turn: Turn) -> str:
    """How long the answer took from the end of the speech to each step."""
    waits = turn.waits_ms
    return f"speech end -> {', '.join(f'{called} {_told(waits[name])}' for name, called in _WAITS.items())} ms"


def _told(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.0f}"


class Unseen:
    """Shows nothing."""

    def show(self, words: Words) -> None:
        """Nobody reads them."""

    def begin(self, recording: Recording) -> None:
        """Nobody reads its name."""

    def over(self, turn: Turn) -> None:
        """Nobody reads how long it took."""
