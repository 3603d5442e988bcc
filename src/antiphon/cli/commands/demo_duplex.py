"""The demo's acts in full duplex: a conversation, and people who wait for a model with one place."""

import asyncio
from collections.abc import Callable
from typing import Any

from antiphon.cli.common.client import Client
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice import duplex_stage, from_files_duplex as duplex_session, minicpmo_session as duplex_line
from antiphon.cli.voice.audio import Recording
from antiphon.cli.voice.duplex_record import Record
from antiphon.cli.voice.transcript import Words
from antiphon.wire.minicpmo.server_events import SessionCreated, SessionQueued

PEOPLE = ("Ada", "Ben", "Cleo")
_PIECE_MS = 200
_GAP_S = 0.05
"""Between people, so that they come in this order."""


def converse(client: Client, model: str, instructions: str, question: Recording, shell: Shell) -> None:
    """
    Ask a question in full duplex, and hear the answer out.

    Raises:
        UpstreamTrouble: there is none.
    """
    asked = duplex_line.Asked(model=model, instructions=instructions)
    given = duplex_session.Given(recordings=[question], piece_ms=_PIECE_MS)
    asyncio.run(duplex_session.held(client, asked, given, duplex_stage.DuplexStage(shell)))


def queue(client: Client, model: str, question: Recording, say: Callable[[str, str], None]) -> None:
    """
    Several people want a model that has one place, all at the same time.

    Args:
        say: prints who does what.

    Raises:
        UpstreamTrouble: one of them is not answered.
    """
    asked = duplex_line.Asked(mode="chat", model=model)
    given = duplex_session.Given(recordings=[question])

    async def come(number: int, who: str) -> None:
        await asyncio.sleep(number * _GAP_S)
        await duplex_session.held(client, asked, given, _Person(who, say))
        say(who, "leaves")

    async def all_come() -> None:
        await asyncio.gather(*(come(number, who) for number, who in enumerate(PEOPLE)))  # noqa: TID251 - a client's, and all end here

    asyncio.run(all_come())


class _Person:
    """Shows what becomes of one of them."""

    def __init__(self, who: str, say: Callable[[str, str], None]) -> None:
        self._who = who
        self._say = say
        self._told: str | None = None

    def show(self, words: Words) -> None:
        """What is said is the same for everybody."""

    def state(self, event: Any, record: Record) -> None:
        """A place in the queue, or with the model."""
        if isinstance(event, SessionCreated):
            self._tell("has the place")
        elif isinstance(event, SessionQueued):
            self._tell(duplex_stage.place_told(record.places[-1]))

    def _tell(self, told: str) -> None:
        if told != self._told:
            self._told = told
            self._say(self._who, told)

    def over(self, record: Record, first: int) -> None:
        """Nobody reads how long it took."""
