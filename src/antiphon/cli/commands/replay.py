"""A recording, said again to a server: sending its client's side, and writing down what comes back."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from antiphon.cli.common.client import Client
from antiphon.cli.voice.socket import opened
from antiphon.errors import UpstreamTrouble
from antiphon.runtime.recording.events import IN, OUT
from antiphon.runtime.recording.files import Line
from antiphon.runtime.replay.compare import Compared, compared
from antiphon.runtime.replay.steps import END_OF_TURN, Ids, Recorded, Step, kind_of

PATIENCE_S = 20.0
"""Longer than a model takes to say anything."""

_ENDS = ("response.done", END_OF_TURN)


class Replay:
    """
    One recording being said again.

    Args:
        fast: whether to say it as fast as it is taken, not as fast as it was said.
        patience_s: how long it is waited for what came then, when nothing at all comes now.

    Attributes:
        lines: what was said, of which only the time is kept, and what came.
    """

    def __init__(self, recorded: Recorded, *, fast: bool, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._recorded = recorded
        self._fast = fast
        self._ids = Ids(recorded.lines)
        self._come: Counter[str] = Counter()
        self.lines: list[Line] = []
        self._missing: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._is_over = False
        self._began_at_s = self._late_s = 0.0

    async def run(self, client: Client, path: str) -> Sequence[Compared]:
        """
        The turns of then and of now.

        Raises:
            UpstreamTrouble: the server is not there, or declines.
        """
        async with opened(client, path, {}) as socket, asyncio.TaskGroup() as tasks:
            self._began_at_s = asyncio.get_running_loop().time()
            hearing = tasks.create_task(self._hear(socket))
            for step in self._recorded.steps():
                await self._wait(step)
                if self._is_over:
                    break
                await self._say(socket, self._ids.put_into(step.event))
            await self._until(Counter(kind_of(line.event) for line in self._recorded.lines if line.direction == OUT), _ENDS)
            hearing.cancel()
        if not self._come["session.created"]:
            raise UpstreamTrouble("The server has begun no session.")
        return compared(self._recorded, self.lines)

    async def _hear(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            event = msgspec.json.decode(message.data, type=dict[str, Any])
            self._note(OUT, event)
            self._ids.told(event)
            self._come[kind_of(event)] += 1
            self._news.set()
        self._is_over = True
        self._news.set()

    async def _say(self, socket: aiohttp.ClientWebSocketResponse, event: dict[str, Any]) -> None:
        self._note(IN, {"type": event.get("type")})  # of which only the time is wanted
        try:
            await socket.send_str(msgspec.json.encode(event).decode())
        except (aiohttp.ClientError, ConnectionError):
            self._is_over = True

    def _note(self, direction: str, event: dict[str, Any]) -> None:
        at_s = asyncio.get_running_loop().time() - self._began_at_s
        self.lines.append(Line(len(self.lines) + 1, at_s, direction, event))

    async def _wait(self, step: Step) -> None:
        now_s = asyncio.get_running_loop().time
        had_to_wait = await self._until(Counter(step.after), tuple(step.after))
        early_s = self._began_at_s + self._late_s + step.at_s - now_s()
        if had_to_wait and early_s < 0:  # the rest keeps its pace: said in haste it could not be listened to as it was then
            self._late_s -= early_s
        if not self._fast:
            await asyncio.sleep(early_s)

    async def _until(self, wanted: Counter[str], kinds: Sequence[str]) -> bool:
        """Wait until as much has come as then, or nothing more comes; whether there was anything to wait for."""
        had_to_wait = False
        while not self._is_over and (owed := wanted - self._come - self._missing) and any(owed[kind] for kind in kinds):
            had_to_wait = True
            self._news.clear()
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._news.wait()
            except TimeoutError:  # once, and not before each of the steps that follow
                self._missing += Counter({kind: owed[kind] for kind in kinds})
        return had_to_wait
