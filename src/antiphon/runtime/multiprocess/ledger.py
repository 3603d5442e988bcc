"""What the processes of one server have used and counted, all together; the supervisor keeps it."""

import time
from collections.abc import Callable

from antiphon.errors import ClientError
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import Meter
from antiphon.runtime.core.metrics import Snapshot
from antiphon.runtime.multiprocess.link import AddTokens, BeginRequest, BeginStream, EndStream, GetLimits, LimitRefusal, LimitVerdict

LimitQuestion = BeginRequest | BeginStream | GetLimits


class UsageLedger:
    """
    The use of every limited key, and the numbers of every process.

    A process is known by any number that is no other's; what it had under way ends with it, what it had counted stays.

    Args:
        pace: seconds from any origin, for the limits.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._meters: dict[str, Meter] = {}  # as many as there are keys with limits
        self._streams: dict[tuple[int, int], Meter] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._ended_total = Snapshot()

    def judge(self, process: int, question: LimitQuestion) -> LimitVerdict:
        """The answer to a process that asks for a key."""
        meter = self._meter(question.key)
        try:
            match question:
                case BeginRequest():
                    meter.begin_request()
                case BeginStream():
                    meter.begin_stream()
                    self._streams[process, question.stream] = meter
                case GetLimits():
                    pass
        except ClientError as mistake:
            return LimitVerdict(meter.states(), LimitRefusal.of(mistake))
        return LimitVerdict(meter.states())

    def end_stream(self, process: int, message: EndStream) -> None:
        """An answer is over; nothing where it was never begun."""
        if (meter := self._streams.pop((process, message.stream), None)) is not None:
            meter.end_stream(message.tokens)

    def add_tokens(self, message: AddTokens) -> None:
        """Something of a key's came to so many tokens."""
        self._meter(message.key).count_tokens(message.tokens)

    def add_process(self, process: int) -> None:
        """A process has begun."""
        self._snapshots[process] = Snapshot()

    def set_snapshot(self, process: int, snapshot: Snapshot) -> None:
        """What a process has counted by now; nothing where it has ended meanwhile."""
        if process in self._snapshots:
            self._snapshots[process] = snapshot

    def total(self) -> Snapshot:
        """What all processes have counted, those that are gone as well."""
        return sum(self._snapshots.values(), self._ended_total)

    def remove_process(self, process: int) -> None:
        """A process has ended."""
        for stream in [stream for owner, stream in self._streams if owner == process]:
            self.end_stream(process, EndStream(stream, 0))
        self._ended_total += self._snapshots.pop(process).without_gauges()

    def _meter(self, key: KeyRecord) -> Meter:
        if key.id not in self._meters:
            self._meters[key.id] = Meter(key, self._monotonic)
        return self._meters[key.id]
