"""A recording, said again to a server: sending its client's side, and writing down what comes back."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from antiphon.cli.common.client import ApiClient
from antiphon.cli.voice.socket import connect_websocket
from antiphon.errors import UpstreamError
from antiphon.runtime.recording.events import IN, OUT
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.replay.compare import TurnComparison, compare
from antiphon.runtime.replay.steps import END_OF_TURN, DownloadedRecording, IdMapping, ReplayStep, milestone_of

IDLE_TIMEOUT_S = 20.0
"""Longer than a model takes to say anything."""

_END_EVENTS = ("response.done", END_OF_TURN)


class SessionReplay:
    """
    One recording being said again.

    Args:
        fast: whether to say it as fast as it is taken, not as fast as it was said.
        patience_s: how long it is waited for what came then, when nothing at all comes now.

    Attributes:
        lines: what was said, of which only the time is kept, and what came.
    """

    def __init__(self, recording: DownloadedRecording, *, is_fast: bool, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._recording = recording
        self._is_fast = is_fast
        self._ids = IdMapping(recording.lines)
        self._received_counts: Counter[str] = Counter()
        self.lines: list[EventLine] = []
        self._missing_counts: Counter[str] = Counter()
        self._arrival = asyncio.Event()
        self._is_over = False
        self._start_s = self._delay_s = 0.0

    async def run(self, client: ApiClient, path: str) -> Sequence[TurnComparison]:
        """
        The turns of then and of now.

        Raises:
            UpstreamError: the server is not there, or declines.
        """
        async with connect_websocket(client, path, {}) as socket, asyncio.TaskGroup() as tasks:
            self._start_s = asyncio.get_running_loop().time()
            hearing = tasks.create_task(self._receive(socket))
            for step in self._recording.steps():
                await self._wait_for_step(step)
                if self._is_over:
                    break
                await self._send(socket, self._ids.map_event(step.event))
            await self._wait_for_events(
                Counter(milestone_of(line.event) for line in self._recording.lines if line.direction == OUT), _END_EVENTS
            )
            hearing.cancel()
        if not self._received_counts["session.created"]:
            raise UpstreamError("The server has begun no session.")
        return compare(self._recording, self.lines)

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            event = msgspec.json.decode(message.data, type=dict[str, Any])
            self._append_line(OUT, event)
            self._ids.on_server_event(event)
            self._received_counts[milestone_of(event)] += 1
            self._arrival.set()
        self._is_over = True
        self._arrival.set()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, event: dict[str, Any]) -> None:
        self._append_line(IN, {"type": event.get("type")})  # of which only the time is wanted
        try:
            await socket.send_str(msgspec.json.encode(event).decode())
        except (aiohttp.ClientError, ConnectionError):
            self._is_over = True

    def _append_line(self, direction: str, event: dict[str, Any]) -> None:
        at_s = asyncio.get_running_loop().time() - self._start_s
        self.lines.append(EventLine(len(self.lines) + 1, at_s, direction, event))

    async def _wait_for_step(self, step: ReplayStep) -> None:
        now_s = asyncio.get_running_loop().time
        had_to_wait = await self._wait_for_events(Counter(step.milestones_before), tuple(step.milestones_before))
        early_s = self._start_s + self._delay_s + step.at_s - now_s()
        if had_to_wait and early_s < 0:  # the rest keeps its pace: said in haste it could not be listened to as it was then
            self._delay_s -= early_s
        if not self._is_fast:
            await asyncio.sleep(early_s)

    async def _wait_for_events(self, expected_counts: Counter[str], kinds: Sequence[str]) -> bool:
        """Wait until as much has come as then, or nothing more comes; whether there was anything to wait for."""
        had_to_wait = False
        while (
            not self._is_over
            and (owed := expected_counts - self._received_counts - self._missing_counts)
            and any(owed[kind] for kind in kinds)
        ):
            had_to_wait = True
            self._arrival.clear()
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    await self._arrival.wait()
            except TimeoutError:  # once, and not before each of the steps that follow
                self._missing_counts += Counter({kind: owed[kind] for kind in kinds})
        return had_to_wait
