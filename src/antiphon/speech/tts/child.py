"""
The process of a voice, whatever speaks in it: it says one thing after the other, and ends when the server does.

A thread reads what is asked, so that `StopSynthesis` reaches what is being said. Standard input is the socket; standard
output leads nowhere, as
libraries print what they like.
"""

import heapq
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from antiphon.speech.tts.link import (
    StartVoice,
    StopSynthesis,
    SynthesisDone,
    SynthesisFailed,
    Synthesize,
    TimedWord,
    VoiceCommand,
    VoiceFailed,
    VoiceFrameReader,
    VoiceReady,
    command_decoder,
    encode_frame,
)

READ_BYTES = 1 << 16

LOOKAHEAD_PENALTY = 8
"""So many that are asked later may go before what is asked ahead of its time: those who wait for their first word."""


class VoiceUnavailable(Exception):
    """What a voice needs is not there; the message says how to get it."""


class SynthesisStopped(Exception):
    """Nobody wants to hear it any more."""


class SynthesisJob:
    """
    Something to be said.

    Attributes:
        say: what was asked.
        is_stopped: whether it need not be said any more.
        stop: stops what is being done about it; set by who does it.
    """

    def __init__(self, request: Synthesize) -> None:
        self.request = request
        self.is_stopped = False
        self.stop: Callable[[], None] = lambda: None


class VoiceBackend(Protocol):
    """What speaks."""

    def synthesize(self, job: SynthesisJob) -> tuple[bytes, Iterable[tuple[str, int]]]:
        """
        The sound of the job's text, and its words with the samples of each.

        Raises:
            Stopped: the job was stopped meanwhile.
        """


class _JobQueue:
    """What was asked and is not done, between the thread that reads and the one that speaks."""

    def __init__(self, on_start: Callable[[StartVoice], None]) -> None:
        self._on_start = on_start
        self._jobs: list[tuple[int, int, SynthesisJob]] = []  # each behind its rank and its number
        self._arrival_numbers = itertools.count()
        self._current: SynthesisJob | None = None
        self._condition = threading.Condition()

    def handle(self, message: VoiceCommand) -> None:
        with self._condition:
            match message:
                case StartVoice():
                    self._on_start(message)
                case Synthesize():
                    rank = next(self._arrival_numbers) + (LOOKAHEAD_PENALTY if message.ahead else 0)
                    heapq.heappush(self._jobs, (rank, message.id, SynthesisJob(message)))
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


def serve(new_backend: Callable[[StartVoice], VoiceBackend]) -> None:
    """
    Be the process of a voice: make what speaks, then say what is asked, until the other end is gone.

    Args:
        make: raises `VoiceUnavailable` where it can't.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to take: it may have answers to finish
    with socket.socket(fileno=os.dup(0)) as link:
        begun: list[StartVoice] = []
        has_begun = threading.Event()

        def begin(message: StartVoice) -> None:
            begun.append(message)
            has_begun.set()

        asked = _JobQueue(begin)
        threading.Thread(target=_read_commands, args=(link, asked), name="reader", daemon=True).start()
        has_begun.wait()
        try:
            synthesiser = new_backend(begun[0])
        except VoiceUnavailable as missing:
            link.sendall(encode_frame(VoiceFailed(str(missing))))
            return
        link.sendall(encode_frame(VoiceReady()))
        while True:
            _run_job(link, synthesiser, asked.get())


def _run_job(link: socket.socket, backend: VoiceBackend, job: SynthesisJob) -> None:
    try:
        pcm, words = backend.synthesize(job)
    except SynthesisStopped:
        return
    except Exception as error:  # a session of this process: one text that can't be said must not cost the others their voice
        link.sendall(encode_frame(SynthesisFailed(job.request.id, f"{type(error).__name__}: {error}")))
        return
    link.sendall(encode_frame(SynthesisDone(job.request.id, pcm, tuple(TimedWord(text, samples) for text, samples in words))))


def _read_commands(link: socket.socket, jobs: _JobQueue) -> None:
    frames = VoiceFrameReader()
    try:
        while received := link.recv(READ_BYTES):
            for packed in frames.feed(received):
                jobs.handle(command_decoder.decode(packed))
    finally:
        os._exit(0)  # the server is gone, however it went, and nobody is left to speak to
