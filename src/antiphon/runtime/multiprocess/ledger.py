"""What the processes of one server have used and counted, all together; the supervisor keeps it."""

import time
from collections.abc import Callable

from antiphon.errors import ClientMistake
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import Meter
from antiphon.runtime.core.metrics import Snapshot
from antiphon.runtime.multiprocess.link import BeginRequest, BeginStream, EndStream, Look, Refusal, Spend, Verdict

Question = BeginRequest | BeginStream | Look


class Ledger:
    """
    The use of every limited key, and the numbers of every process.

    A process is known by any number that is no other's; what it had under way ends with it, what it had counted stays.

    Args:
        pace: seconds from any origin, for the limits.
    """

    def __init__(self, pace: Callable[[], float] = time.monotonic) -> None:
        self._pace = pace
        self._meters: dict[str, Meter] = {}  # as many as there are keys with limits
        self._streams: dict[tuple[int, int], Meter] = {}
        self._counted: dict[int, Snapshot] = {}
        self._gone = Snapshot()

    def judge(self, process: int, question: Question) -> Verdict:
        """The answer to a process that asks for a key."""
        meter = self._meter(question.key)
        try:
            match question:
                case BeginRequest():
                    meter.begin_request()
                case BeginStream():
                    meter.begin_stream()
                    self._streams[process, question.stream] = meter
                case Look():
                    pass
        except ClientMistake as mistake:
            return Verdict(meter.states(), Refusal.of(mistake))
        return Verdict(meter.states())

    def end_stream(self, process: int, end: EndStream) -> None:
        """An answer is over; nothing where it was never begun."""
        if (meter := self._streams.pop((process, end.stream), None)) is not None:
            meter.end_stream(end.tokens)

    def spend(self, spend: Spend) -> None:
        """Something of a key's came to so many tokens."""
        self._meter(spend.key).spend(spend.tokens)

    def enter(self, process: int) -> None:
        """A process has begun."""
        self._counted[process] = Snapshot()

    def count(self, process: int, snapshot: Snapshot) -> None:
        """What a process has counted by now; nothing where it has ended meanwhile."""
        if process in self._counted:
            self._counted[process] = snapshot

    def total(self) -> Snapshot:
        """What all processes have counted, those that are gone as well."""
        return sum(self._counted.values(), self._gone)

    def leave(self, process: int) -> None:
        """A process has ended."""
        for stream in [stream for owner, stream in self._streams if owner == process]:
            self.end_stream(process, EndStream(stream, 0))
        self._gone += self._counted.pop(process).without_gauges()

    def _meter(self, key: KeyRecord) -> Meter:
        if key.id not in self._meters:
            self._meters[key.id] = Meter(key, self._pace)
        return self._meters[key.id]
