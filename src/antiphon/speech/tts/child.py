"""
The process of a voice, whatever speaks in it: it says one thing after the other, and ends when the server does.

A thread reads what is asked, so that `Stop` reaches what is being said. Standard input is the socket; standard output leads nowhere, as
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

from antiphon.speech.tts.link import Begin, Failed, Frames, NotSaid, Ready, Said, Say, Stop, ToVoice, Word, framed, to_voice

READ_BYTES = 1 << 16

OVERTAKEN_BY = 8
"""So many that are asked later may go before what is asked ahead of its time: those who wait for their first word."""


class Missing(Exception):
    """What a voice needs is not there; the message says how to get it."""


class Stopped(Exception):
    """Nobody wants to hear it any more."""


class Job:
    """
    Something to be said.

    Attributes:
        say: what was asked.
        is_stopped: whether it need not be said any more.
        stop: stops what is being done about it; set by who does it.
    """

    def __init__(self, say: Say) -> None:
        self.say = say
        self.is_stopped = False
        self.stop: Callable[[], None] = lambda: None


class Synthesiser(Protocol):
    """What speaks."""

    def speak(self, job: Job) -> tuple[bytes, Iterable[tuple[str, int]]]:
        """
        The sound of the job's text, and its words with the samples of each.

        Raises:
            Stopped: the job was stopped meanwhile.
        """


class _Asked:
    """What was asked and is not done, between the thread that reads and the one that speaks."""

    def __init__(self, begun: Callable[[Begin], None]) -> None:
        self._begun = begun
        self._jobs: list[tuple[int, int, Job]] = []  # each behind its rank and its number
        self._arrived = itertools.count()
        self._current: Job | None = None
        self._changed = threading.Condition()

    def take(self, message: ToVoice) -> None:
        with self._changed:
            match message:
                case Begin():
                    self._begun(message)
                case Say():
                    rank = next(self._arrived) + (OVERTAKEN_BY if message.ahead else 0)
                    heapq.heappush(self._jobs, (rank, message.id, Job(message)))
                case Stop():
                    self._stop(message.id)
            self._changed.notify()

    def _stop(self, id: int) -> None:
        for job in (*(job for *_, job in self._jobs), *([self._current] if self._current else [])):
            if job.say.id == id:
                job.is_stopped = True
                job.stop()

    def next(self) -> Job:
        with self._changed:
            while True:
                while self._jobs:
                    *_, self._current = heapq.heappop(self._jobs)
                    if not self._current.is_stopped:
                        return self._current
                self._current = None
                self._changed.wait()


def serve(make: Callable[[Begin], Synthesiser]) -> None:
    """
    Be the process of a voice: make what speaks, then say what is asked, until the other end is gone.

    Args:
        make: raises `Missing` where it can't.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to take: it may have answers to finish
    with socket.socket(fileno=os.dup(0)) as link:
        begun: list[Begin] = []
        has_begun = threading.Event()

        def begin(message: Begin) -> None:
            begun.append(message)
            has_begun.set()

        asked = _Asked(begin)
        threading.Thread(target=_read, args=(link, asked), name="reader", daemon=True).start()
        has_begun.wait()
        try:
            synthesiser = make(begun[0])
        except Missing as missing:
            link.sendall(framed(Failed(str(missing))))
            return
        link.sendall(framed(Ready()))
        while True:
            _answer(link, synthesiser, asked.next())


def _answer(link: socket.socket, synthesiser: Synthesiser, job: Job) -> None:
    try:
        pcm, words = synthesiser.speak(job)
    except Stopped:
        return
    except Exception as error:  # a session of this process: one text that can't be said must not cost the others their voice
        link.sendall(framed(NotSaid(job.say.id, f"{type(error).__name__}: {error}")))
        return
    link.sendall(framed(Said(job.say.id, pcm, tuple(Word(text, samples) for text, samples in words))))


def _read(link: socket.socket, asked: _Asked) -> None:
    frames = Frames()
    try:
        while received := link.recv(READ_BYTES):
            for packed in frames.take(received):
                asked.take(to_voice.decode(packed))
    finally:
        os._exit(0)  # the server is gone, however it went, and nobody is left to speak to
