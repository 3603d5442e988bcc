"""Replaying a recording: sending its client's side to a server, and noting what comes back."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import aiohttp
import msgspec

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.socket import connect_websocket
from antiphon.errors import UpstreamError
from antiphon.runtime.recording.events import IN, OUT
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.replay.compare import TurnComparison, compare
from antiphon.runtime.replay.steps import END_OF_TURN, DownloadedRecording, IdMapping, ReplayStep, milestone_of
from antiphon.wire.codec.types import JsonDict

IDLE_TIMEOUT_S = 20.0
"""Longer than any model takes between two events."""

_TRUNCATED = "conversation.item.truncated"

_END_EVENTS = ("response.done", END_OF_TURN, _TRUNCATED)


class SessionReplay:
    """
    A replay of one recording.

    Args:
        is_fast: whether to send as fast as possible, not at the recorded pace.
        model: the model that answers; None for the recording's.
        idle_timeout_s: after so long without any event, stop waiting for one that came in the recording.

    Attributes:
        lines: the new session: what was sent, without its content, and what was received.
    """

    def __init__(
        self, recording: DownloadedRecording, *, is_fast: bool, model: str | None = None, idle_timeout_s: float = IDLE_TIMEOUT_S
    ) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._recording = recording
        self._is_fast = is_fast
        self._model = model
        self._ids = IdMapping(recording.lines)
        self._received_counts: Counter[str] = Counter()
        self.lines: list[EventLine] = []
        self._missing_counts: Counter[str] = Counter()
        self._arrival = asyncio.Event()
        self._is_over = False
        # `_delay_s`: how far the replay is behind the recording, as the new answers took longer.
        self._start_s = self._delay_s = 0.0

    async def run(self, client: ApiClient, path: str) -> Sequence[TurnComparison]:
        """
        Replay the recording, and compare its turns with the new ones.

        Raises:
            UpstreamError: the server can't be reached, or refuses.
        """
        async with connect_websocket(client, path, {}) as socket, asyncio.TaskGroup() as tasks:
            self._start_s = asyncio.get_running_loop().time()
            receiver = tasks.create_task(self._receive(socket))
            for step in self._recording.steps(self._model):
                await self._wait_for_step(step)
                if self._is_over:
                    break
                await self._send(socket, self._ids.map_event(step.event))
            # The last answers may still be coming when all is sent.
            await self._wait_for_events(
                Counter(milestone_of(line.event) for line in self._recording.lines if line.direction == OUT), _END_EVENTS
            )
            receiver.cancel()
        if not self._received_counts["session.created"]:
            raise UpstreamError("The server started no session.")
        return compare(self._recording, self.lines)

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            event = msgspec.json.decode(message.data, type=JsonDict)
            self._append_line(OUT, event)
            # Later steps name items and responses by the ids of this session.
            self._ids.on_server_event(event)
            self._received_counts[milestone_of(event)] += 1
            if event.get("type") == "error":  # a truncation may have been refused, as the new answer is shorter
                self._missing_counts[_TRUNCATED] += 1
            self._arrival.set()
        self._is_over = True
        self._arrival.set()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, event: JsonDict) -> None:
        self._append_line(IN, {"type": event.get("type")})  # the comparison needs only the time
        try:
            await socket.send_str(msgspec.json.encode(event).decode())
        except (aiohttp.ClientError, ConnectionError):
            self._is_over = True

    def _append_line(self, direction: str, event: JsonDict) -> None:
        at_s = asyncio.get_running_loop().time() - self._start_s
        self.lines.append(EventLine(len(self.lines) + 1, at_s, direction, event))

    async def _wait_for_step(self, step: ReplayStep) -> None:
        now_s = asyncio.get_running_loop().time
        had_to_wait = await self._wait_for_events(Counter(step.milestones_before), tuple(step.milestones_before))
        early_s = self._start_s + self._delay_s + step.at_s - now_s()
        if had_to_wait and early_s < 0:  # the rest keeps its pace: a server hears hurried speech differently
            self._delay_s -= early_s
        if not self._is_fast:
            await asyncio.sleep(early_s)

    async def _wait_for_events(self, expected_counts: Counter[str], kinds: Sequence[str]) -> bool:
        """Wait until these events have come as often as expected, or none comes; returns whether it had to wait."""
        had_to_wait = False
        while (
            not self._is_over
            and (missing := expected_counts - self._received_counts - self._missing_counts)
            and any(missing[kind] for kind in kinds)
        ):
            had_to_wait = True
            self._arrival.clear()
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    await self._arrival.wait()
            except TimeoutError:  # give them up, or every later step would wait again
                self._missing_counts += Counter({kind: missing[kind] for kind in kinds})
        return had_to_wait
