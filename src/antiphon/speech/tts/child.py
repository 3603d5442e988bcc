"""
The main loop of a voice's process: it makes one piece of speech after the other, and ends when the server does.

A thread reads the commands, so that `StopSynthesis` reaches the running synthesis. Standard input is the socket.
"""

import heapq
import itertools
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from antiphon.framing import FrameDecoder, pack_frame
from antiphon.speech.tts.messages import (
    StartVoice,
    StopSynthesis,
    SynthesisDone,
    SynthesisFailed,
    Synthesize,
    SynthesizedAudio,
    TimedWord,
    VoiceCommand,
    VoiceFailed,
    VoiceReady,
    command_decoder,
)
from antiphon.subprocesses import end_with_parent, take_parent_socket

READ_BYTES = 1 << 16

LOOKAHEAD_PENALTY = 8
"""
Later requests that may overtake one asked ahead of its time, or one of which a piece was sent: their listeners still
wait for a first word.
"""

SpeechPiece = tuple[bytes, Iterable[tuple[str, int]]]
"""Speech (s16le mono), and its words with the samples of each; a word without text continues the one before."""


class VoiceUnavailable(Exception):
    """The voice can't be loaded; the message says why, and what to install."""


class SynthesisStopped(Exception):
    """The job was stopped."""


class SynthesisJob:
    """
    One text to synthesize.

    Attributes:
        is_stopped: whether the result is no longer wanted.
        stop: interrupts the running synthesis; set by the backend.
        pieces: what is left of its speech; None until it is begun.
        rank: the lowest goes first; set by the queue.
    """

    def __init__(self, request: Synthesize) -> None:
        self.request = request
        self.is_stopped = False
        self.stop: Callable[[], None] = lambda: None
        self.pieces: Iterator[SpeechPiece] | None = None
        self.rank = 0


class VoiceBackend(Protocol):
    """Turns text into speech, a piece at a time; between two pieces of a job come those of others."""

    def synthesize(self, job: SynthesisJob) -> Iterable[SpeechPiece]:
        """
        The speech of the job's text.

        Raises:
            SynthesisStopped: the job was stopped meanwhile.
        """


class _JobQueue:
    """Pending jobs, between the thread that reads commands and the one that runs jobs."""

    def __init__(self, on_start: Callable[[StartVoice], None]) -> None:
        self._on_start = on_start
        self._jobs: list[tuple[int, int, SynthesisJob]] = []  # rank, request id, job
        self._arrival_numbers = itertools.count()
        self._current: SynthesisJob | None = None
        self._condition = threading.Condition()

    def handle(self, message: VoiceCommand) -> None:
        with self._condition:
            match message:
                case StartVoice():
                    self._on_start(message)
                case Synthesize():
                    self._push(SynthesisJob(message), next(self._arrival_numbers) + (LOOKAHEAD_PENALTY if message.ahead else 0))
                case StopSynthesis():
                    self._stop(message.id)
            self._condition.notify()

    def _stop(self, id: int) -> None:
        for job in (*(job for *_, job in self._jobs), *([self._current] if self._current else [])):
            if job.request.id == id:
                job.is_stopped = True
                job.stop()

    def get(self) -> SynthesisJob:
        with self._condition:
            while True:
                while self._jobs:
                    *_, self._current = heapq.heappop(self._jobs)
                    if not self._current.is_stopped:
                        return self._current
                self._current = None
                self._condition.wait()

    def put_back(self, job: SynthesisJob, *, is_first_piece: bool) -> None:
        """Go on with a job, of which a piece was sent, when it is its turn again."""
        with self._condition:
            self._push(job, job.rank + (LOOKAHEAD_PENALTY if is_first_piece and not job.request.ahead else 0))

    def _push(self, job: SynthesisJob, rank: int) -> None:
        job.rank = rank
        heapq.heappush(self._jobs, (rank, job.request.id, job))


def serve(new_backend: Callable[[StartVoice], VoiceBackend]) -> None:
    """
    Run a voice's process until the server closes the socket.

    Args:
        new_backend: loads the voice; raises `VoiceUnavailable` if it can't.
    """
    end_with_parent()
    with take_parent_socket() as link:
        start_commands: queue.SimpleQueue[StartVoice] = queue.SimpleQueue()
        jobs = _JobQueue(start_commands.put)
        threading.Thread(target=_read_commands, args=(link, jobs), name="reader", daemon=True).start()
        try:
            backend = new_backend(start_commands.get())
        except VoiceUnavailable as error:
            link.sendall(pack_frame(VoiceFailed(str(error))))
            return
        link.sendall(pack_frame(VoiceReady()))
        while True:
            job = jobs.get()
            is_first_piece = job.pieces is None
            if _send_piece(link, backend, job):
                jobs.put_back(job, is_first_piece=is_first_piece)


def _send_piece(link: socket.socket, backend: VoiceBackend, job: SynthesisJob) -> bool:
    """Send the next piece of a job's speech; returns whether there may be more."""
    id = job.request.id
    try:
        job.pieces = iter(backend.synthesize(job)) if job.pieces is None else job.pieces
        piece = next(job.pieces, None)
        frame = pack_frame(SynthesizedAudio(id, piece[0], tuple(TimedWord(*word) for word in piece[1])) if piece else SynthesisDone(id))
    # Nothing is sent: nobody waits for a job that was stopped.
    except SynthesisStopped:
        return False
    except Exception as error:  # one text that fails, or is too long for a frame, must not cost the others their voice
        piece = None
        frame = pack_frame(SynthesisFailed(id, f"{type(error).__name__}: {error}"))
    link.sendall(frame)
    return piece is not None


def _read_commands(link: socket.socket, jobs: _JobQueue) -> None:
    frames = FrameDecoder(command_decoder)
    try:
        while chunk := link.recv(READ_BYTES):
            for command in frames.feed(chunk):
                jobs.handle(command)
    finally:
        os._exit(0)  # the server is gone, however it ended
