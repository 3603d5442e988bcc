"""A recording, said again to a server: sending its client's side, and writing down what comes back."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from antiphon.cli.client import Client
from antiphon.cli.talk_socket import opened
from antiphon.errors import UpstreamTrouble
from antiphon.runtime.recorder_events import IN, OUT
from antiphon.runtime.recorder_files import Line
from antiphon.runtime.replay import Ids, Recorded, Step, kind_of
from antiphon.runtime.transcript import Turn, turns_of

PATIENCE_S = 20.0
"""How long it is waited for what came then, when nothing at all comes now."""


class Pair(Struct, frozen=True):
    """An answer of the recording, and the one in its place now; either may be missing."""

    recorded: Turn | None
    replayed: Turn | None

    @property
    def same(self) -> bool:
        """Whether both say the same."""
        return self.recorded is not None and self.replayed is not None and self.recorded.text == self.replayed.text


class Replay:
    """
    One recording being said again.

    Args:
        fast: whether to say it as fast as it is taken, not as fast as it was said.
    """

    def __init__(self, recorded: Recorded, *, fast: bool) -> None:
        self._recorded = recorded
        self._fast = fast
        self._ids = Ids(recorded.lines)
        self._come: Counter[str] = Counter()
        self._lines: list[Line] = []
        self._news = asyncio.Event()
        self._is_over = False
        self._began_at_s = 0.0

    async def run(self, client: Client, path: str) -> Sequence[Pair]:
        """
        The answers of then and of now.

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
            await self._until(Counter(kind_of(line.event) for line in self._recorded.lines if line.direction == OUT), ("response.done",))
            hearing.cancel()
        if not self._come["session.created"]:
            raise UpstreamTrouble("The server has begun no session.")
        return pairs(turns_of(self._recorded.lines), turns_of(self._lines))

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
        self._note(IN, event)
        try:
            await socket.send_str(msgspec.json.encode(event).decode())
        except (aiohttp.ClientError, ConnectionError):
            self._is_over = True

    def _note(self, direction: str, event: dict[str, Any]) -> None:
        at_s = asyncio.get_running_loop().time() - self._began_at_s
        self._lines.append(Line(len(self._lines) + 1, at_s, direction, event))

    async def _wait(self, step: Step) -> None:
        await self._until(Counter(step.after), tuple(step.after))
        if not self._fast:
            await asyncio.sleep(self._began_at_s + step.at_s - asyncio.get_running_loop().time())

    async def _until(self, wanted: Counter[str], kinds: Sequence[str]) -> None:
        """Wait until as much has come as then, or nothing more comes."""
        while not self._is_over and any(self._come[kind] < wanted[kind] for kind in kinds):
            self._news.clear()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._news.wait()
            except TimeoutError:
                return


def pairs(then: Sequence[Turn], now: Sequence[Turn]) -> Sequence[Pair]:
    """The answers of both, side by side in their order."""
    answers = [[turn for turn in turns if turn.who == "model"] for turns in (then, now)]
    count = max(map(len, answers))
    padded = [[*turns, *[None] * (count - len(turns))] for turns in answers]
    return [Pair(*pair) for pair in zip(*padded, strict=True)]
