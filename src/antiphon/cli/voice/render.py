"""How a voice session is shown: who says what, word by word, and what else happens; or its result, as JSON and audio."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from antiphon import audio
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.voice.audio import RATE_HZ
from antiphon.cli.voice.transcript import MODEL, USER, DuplexQueuePosition, DuplexTranscript, TextChunk
from antiphon.wire.minicpmo.server_events import (
    OutputDelta,
    ServerEvent,
    SessionCreated,
    SessionQueued,
    SessionWarning,
)

_INDENT = 10
_MAX_COLUMNS = 110
"""Longer lines are hard to read."""


class Renderer:
    """Shows a session; this one shows nothing."""

    def show(self, chunk: TextChunk) -> None:
        """Show text of a speaker, as it arrives."""

    def show_state(self, event: ServerEvent, transcript: DuplexTranscript) -> None:
        """
        Show what a MiniCPM-o event says besides text: the queue, the session's start and coming end, that the model
        listens.
        """

    def remark(self, text: str) -> None:
        """Show a line that belongs to no speaker."""


class TerminalRenderer(Renderer):
    """
    Shows each speaker's words in lines of their own on the standard output.

    The user's transcript may arrive while the model speaks; it is shown once the model is done.
    """

    def __init__(self, shell: Shell) -> None:
        self._print = shell.say
        self._columns = min(_MAX_COLUMNS, shell.columns)
        self._speaker: str | None = None
        self._column = 0
        self._word = ""
        self._needs_new_line = False
        self._deferred_chunks: list[TextChunk] = []
        self._queue_position: DuplexQueuePosition | None = None
        self._has_listened = False

    def show(self, chunk: TextChunk) -> None:
        """Show text of a speaker."""
        if self._speaker == MODEL and chunk.speaker == USER:
            self._deferred_chunks.append(chunk)
            return
        if chunk.text:
            self._switch_speaker(chunk.speaker)
            self._append_text(chunk.text)
        if chunk.is_last:
            self.end()

    def show_state(self, event: ServerEvent, transcript: DuplexTranscript) -> None:
        """Show a change once: servers repeat their queue positions, and a listening model says so all the time."""
        match event:
            case SessionQueued() if transcript.queue_positions[-1] != self._queue_position:
                self._queue_position = transcript.queue_positions[-1]
                self.remark(format_queue_position(self._queue_position))
            case SessionCreated():
                self.remark(f"session {event.session_id}")
            case SessionWarning():
                self.remark(f"the session ends in {event.remaining_s:.0f} s")
            case OutputDelta(kind="listen") if not self._has_listened and not transcript.answers:
                self._has_listened = True
                self.remark("it listens")

    def remark(self, text: str) -> None:
        """Show a line that belongs to no speaker."""
        self.end()
        indent = " " * _INDENT
        self._print(textwrap.fill(text, self._columns, initial_indent=indent, subsequent_indent=indent))

    def end(self) -> None:
        """End the speaker's lines, and show what had to wait for that."""
        self._end_line()
        chunks, self._deferred_chunks = self._deferred_chunks, []
        for chunk in chunks:
            self.show(chunk)
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
        # Whether a word fits into the line is known once it is whole, so the last one waits for the next text.
        for part in re.findall(r"\s+|\S+", text):
            if part.isspace():
                self._print_word()
                # A word that follows decides, so that an answer ends without empty lines.
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


class SessionOutput:
    """
    Where a session with recordings goes.

    Args:
        file: the value of `--output`: a WAV file for the answers' audio.
        as_json: print the result as JSON, instead of showing the session as it goes.

    Raises:
        UsageError: the file can't be written; a conversation would be lost.
    """

    def __init__(self, shell: Shell, file: Path | None, *, as_json: bool) -> None:
        self.renderer = Renderer() if as_json else TerminalRenderer(shell)
        self._shell = shell
        self._as_json = as_json
        self._file = file
        self._path = None if file is None else shell.cwd / file
        if self._path is not None and self._path.is_dir():
            raise UsageError(f"{file} is a folder; -o takes the name of a WAV file.")
        if self._path is not None and not self._path.parent.is_dir():
            raise UsageError(f"There is no folder {self._path.parent} to write {self._path.name} into.")

    def finish(self, result: Mapping[str, object], answers: Iterable[bytes | bytearray]) -> None:
        """
        Write the file, and print the result.

        Args:
            answers: their audio, s16le at 24 kHz, which both protocols answer with.
        """
        path = self._path and self._write_wav(self._path, b"".join(answers))
        if self._as_json:
            self._shell.say_json({**result, "output": None if path is None else str(path)})

    def _write_wav(self, path: Path, pcm: bytes) -> Path | None:
        if not pcm:
            self._shell.note(f"the answer has no audio, so {self._file} is not written")
            return None
        path.write_bytes(audio.wav_file(pcm, RATE_HZ))
        self._shell.note(f"the answer is in {self._file}: {audio.duration_ms(len(pcm), RATE_HZ) / 1000:.1f} s")
        return path


def format_queue_position(position: DuplexQueuePosition) -> str:
    """A position in the queue, in words."""
    wait = "" if position.wait_s is None else f", about {position.wait_s:.0f} s"
    return f"waits: number {position.position} of {position.queue_length}{wait}"


def format_latencies(latencies_ms: Mapping[str, float | None]) -> str:
    """How long after the end of the speech each part of an answer came; its end, the last of them, is left out."""
    steps = (f"{name.replace('_', ' ')} {_format_ms(ms)}" for name, ms in list(latencies_ms.items())[:-1])
    return f"speech end -> {', '.join(steps)} ms"


def _format_ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.0f}"
