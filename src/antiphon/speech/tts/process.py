"""
The server's end of a voice in a process of its own: it is started, asked, replaced when it dies, and killed when it hangs.

What is asked of a process that dies fails; what is asked while there is none waits for the next, which is started at once.
"""

import asyncio
import contextlib
import itertools
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from msgspec import Struct

from antiphon.errors import OurFault
from antiphon.speech.tts.link import Begin, Failed, Frames, FromVoice, NotSaid, Ready, Said, Say, Stop, ToVoice, framed, from_voice
from antiphon.subprocesses import Kept, begun, ended, settle

AT_ONCE = 2
"""Of what one answer says, so much is asked for at once."""


class Patience(Struct, frozen=True, kw_only=True):
    """
    How long is waited for what.

    Attributes:
        start_s: for a process to be ready; loading takes long on a busy machine.
        answer_s: for a process that has something to say and says nothing; then it is killed.
        waiting: how much may be asked and not yet be said; more is refused.
    """

    start_s: float = 60.0
    answer_s: float = 20.0
    waiting: int = 256


class _Child(asyncio.Protocol):
    """
    One process, and what it was asked.

    Args:
        command: of the process.
        begin: what it is told first.
        lost: called once it is gone.

    Attributes:
        ready: whether it can speak; the fault, where it never will.
        gone: set once it is.
    """

    def __init__(self, command: Sequence[str], begin: Begin, patience: Patience, lost: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._command = command
        self._begin = begin
        self._patience = patience
        self._lost = lost
        self._loop = loop
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, asyncio.Future[Said]] = {}
        self._watchdog: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """
        Start the process; returns when it can speak.

        Raises:
            Fault: it can't.
        """
        self.process = await begun(self._command, lambda: self)
        self.tell(self._begin)
        try:
            async with asyncio.timeout(self._patience.start_s):
                await self.ready
        except TimeoutError:
            raise OurFault(f"The process of the voice was not ready in {self._patience.start_s:g} seconds.") from None

    async def end(self, grace_s: float) -> None:
        """See the process end: of itself when the link is closed, or by force."""
        self.hang_up()
        if self.process is not None:
            await ended(self.process, grace_s)

    # What is asked of it

    @property
    def waiting(self) -> int:
        """How much it has been asked and has not answered."""
        return len(self._asked)

    def ask(self, say: Say) -> asyncio.Future[Said]:
        """Have something said; whoever stops wanting it calls `drop`."""
        answer: asyncio.Future[Said] = self._loop.create_future()
        if self._transport is None:
            settle(answer, _died())
            return answer
        if not self._asked:
            self._watch()
        self._asked[say.id] = answer
        self.tell(say)
        return answer

    def drop(self, id: int, answer: "asyncio.Future[Said]") -> None:
        """Let it stop what is not done."""
        answer.cancel()
        if self._asked.pop(id, None) is not None:
            self.tell(Stop(id))
            if not self._asked:
                self._unwatch()

    def tell(self, message: ToVoice) -> None:
        """Send a message; to nobody where it is gone."""
        if self._transport is not None:
            self._transport.write(framed(message))

    def hang_up(self) -> None:
        """Close the link, at which it ends."""
        if self._transport is not None:
            self._transport.close()

    def kill(self) -> None:
        """End it whatever it does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
        self.hang_up()

    # What comes from it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # that is what a socket has
        """The link is there."""
        self._transport = transport

    def data_received(self, received: bytes) -> None:
        """Some messages, or parts of them."""
        for packed in self._frames.take(received):
            self._hear(from_voice.decode(packed))
        if self._asked:
            self._watch()
        else:
            self._unwatch()

    def _hear(self, message: FromVoice) -> None:
        match message:
            case Ready():
                settle(self.ready, None)
            case Failed():
                settle(self.ready, OurFault(message.message))
            case Said():
                if (waiting := self._asked.pop(message.id, None)) is not None:
                    settle(waiting, message)
            case NotSaid():
                if (waiting := self._asked.pop(message.id, None)) is not None:
                    settle(waiting, OurFault(f"The voice can't say that: {message.message}.", code="server_error"))

    def connection_lost(self, _error: Exception | None) -> None:
        """It has ended, or its end of the link has."""
        self._transport = None
        self._unwatch()
        settle(self.ready, OurFault("The process of the voice ended before it could speak."))
        for waiting in self._asked.values():
            settle(waiting, _died())
        self._asked.clear()
        self.gone.set()
        self._lost()

    def _watch(self) -> None:
        self._unwatch()
        self._watchdog = self._loop.call_later(self._patience.answer_s, self.kill)

    def _unwatch(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None


class VoiceProcess:
    """
    A voice that is always there, whatever becomes of its process.

    Args:
        program: what Python runs: a file, or `-m` and a module.
        begin: what it is told first.
        notice: takes a line for the operator.
    """

    def __init__(
        self, program: Sequence[str], begin: Begin, patience: Patience | None = None, notice: Callable[[str], None] = lambda _line: None
    ) -> None:
        self._patience = patience or Patience()
        self._numbers = itertools.count(1)
        command = (sys.executable, "-P", *program)
        self._kept = Kept("process of the voice", lambda lost: _Child(command, begin, self._patience, lost), notice)

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._kept.pid

    async def start(self) -> None:
        """
        Start the process, and see that there is one from here on; returns when it can speak.

        Raises:
            Fault: it can't.
        """
        await self._kept.start()

    async def stop(self) -> None:
        """End the process; idempotent."""
        await self._kept.stop()

    async def speak(self, texts: Iterable[str], voice: str, speed: float) -> AsyncGenerator[Said]:
        """
        Have clauses or sentences said, one after the other; closing this stops the work.

        While one is being taken the next is being made, and none behind it: so all who speak have their turns.

        Raises:
            Fault: one could not be said, or more is being asked than can be said.
        """
        child = await self._living()
        asked: deque[tuple[int, asyncio.Future[Said]]] = deque()
        try:
            for text in texts:
                if child.waiting >= self._patience.waiting:
                    raise _overloaded()
                id = next(self._numbers)
                asked.append((id, child.ask(Say(id, text, voice, speed, ahead=bool(asked)))))
                if len(asked) == AT_ONCE:
                    yield await _first(asked)
            while asked:
                yield await _first(asked)
        finally:
            for id, answer in asked:
                child.drop(id, answer)

    async def _living(self) -> _Child:
        if not self._kept.is_kept:
            raise OurFault("The voice has not been started.")
        child = await self._kept.living(self._patience.start_s)
        if child is None:
            raise _died()
        return child


async def _first(asked: "deque[tuple[int, asyncio.Future[Said]]]") -> Said:
    said = await asked[0][1]
    asked.popleft()
    return said


def _died() -> OurFault:
    return OurFault(
        "The voice broke off. Please try again.", status=503, type="service_unavailable_error", code="server_error", retry_after_s=1
    )


def _overloaded() -> OurFault:
    return OurFault(
        "The voice has more to say than it can. Please try again later.",
        status=503,
        type="service_unavailable_error",
        code="server_is_overloaded",
        retry_after_s=1,
    )
