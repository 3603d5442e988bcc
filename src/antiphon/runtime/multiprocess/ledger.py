"""Usage and metrics of all processes of one server, kept by its supervisor."""

import time
from collections.abc import Callable

from antiphon.errors import ClientError
from antiphon.records import KeyRecord
from antiphon.runtime.access.rate_limits import Meter
from antiphon.runtime.core.metrics import Snapshot
from antiphon.runtime.multiprocess.link import AddTokens, BeginRequest, BeginStream, EndStream, GetLimits, LimitVerdict
from antiphon.wire.internal.failure import Failure

LimitRequest = BeginRequest | BeginStream | GetLimits


class UsageLedger:
    """
    The usage of every key with limits, and the metrics of every process.

    Each process has a unique number. Its streams end with it; what it counted stays.

    Args:
        monotonic: seconds from any origin, for the limits.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._meters: dict[str, Meter] = {}  # bounded by the number of keys with limits
        self._streams: dict[tuple[int, int], Meter] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._ended_total = Snapshot()

    def judge(self, process: int, request: LimitRequest) -> LimitVerdict:
        """The reply to a process's request about a key."""
        meter = self._meter(request.key)
        try:
            match request:
                case BeginRequest():
                    meter.begin_request()
                case BeginStream():
                    meter.begin_stream()
                    self._streams[process, request.stream] = meter
                case GetLimits():
                    pass
        except ClientError as error:
            # With the error go the limits: the refused client gets them in its headers, and must know when to try again.
            return LimitVerdict(meter.states(), Failure.from_error(error))
        return LimitVerdict(meter.states())

    def end_stream(self, process: int, message: EndStream) -> None:
        """End a stream; does nothing if it was never begun."""
        if (meter := self._streams.pop((process, message.stream), None)) is not None:
            meter.end_stream(message.tokens)

    def add_tokens(self, message: AddTokens) -> None:
        """Count tokens of a key."""
        self._meter(message.key).count_tokens(message.tokens)

    def add_process(self, process: int) -> None:
        """Count a process among those of the server, from its start on."""
        self._snapshots[process] = Snapshot()

    def set_snapshot(self, process: int, snapshot: Snapshot) -> None:
        """Take the latest metrics of a process; ignored if it has ended meanwhile."""
        # Its last snapshot is in the total already, and would be counted twice.
        if process in self._snapshots:
            self._snapshots[process] = snapshot

    def total(self) -> Snapshot:
        """The metrics of all processes, ended ones included."""
        return sum(self._snapshots.values(), self._ended_total)

    def remove_process(self, process: int) -> None:
        """End a process: its streams end, its counts stay."""
        for stream in [stream for owner, stream in self._streams if owner == process]:
            self.end_stream(process, EndStream(stream, 0))
        # Gauges, such as open sessions, ended with their process; counters must never go back.
        self._ended_total += self._snapshots.pop(process).without_gauges()

    def _meter(self, key: KeyRecord) -> Meter:
        if key.id not in self._meters:
            self._meters[key.id] = Meter(key, self._monotonic)
        return self._meters[key.id]
