"""The demo's acts in full duplex: a conversation, and people who wait for a model with one place."""

import asyncio
from collections.abc import Callable
from typing import Any

from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice import duplex_stage, from_files_duplex, minicpmo_session
from antiphon.cli.voice.audio import InputRecording
from antiphon.cli.voice.duplex_record import DuplexTranscript
from antiphon.cli.voice.transcript import TextChunk
from antiphon.wire.minicpmo.server_events import SessionCreated, SessionQueued

PEOPLE = ("Ada", "Ben", "Cleo")
_CHUNK_MS = 200
_ARRIVAL_GAP_S = 0.05
"""Between people, so that they come in this order."""


def show_duplex(client: ApiClient, model: str, instructions: str, question: InputRecording, shell: Shell) -> None:
    """
    Ask a question in full duplex, and hear the answer out.

    Raises:
        UpstreamError: there is none.
    """
    asked = minicpmo_session.MinicpmoSessionOptions(model=model, instructions=instructions)
    given = from_files_duplex.DuplexSessionInput(recordings=[question], chunk_ms=_CHUNK_MS)
    asyncio.run(from_files_duplex.run_duplex_session(client, asked, given, duplex_stage.TerminalDuplexRenderer(shell)))


def show_queue(client: ApiClient, model: str, question: InputRecording, say: Callable[[str, str], None]) -> None:
    """
    Several people want a model that has one place, all at the same time.

    Args:
        say: prints who does what.

    Raises:
        UpstreamError: one of them is not answered.
    """
    asked = minicpmo_session.MinicpmoSessionOptions(mode="chat", model=model)
    given = from_files_duplex.DuplexSessionInput(recordings=[question])

    async def come(number: int, who: str) -> None:
        await asyncio.sleep(number * _ARRIVAL_GAP_S)
        await from_files_duplex.run_duplex_session(client, asked, given, _QueuePrinter(who, say))
        say(who, "leaves")

    async def all_come() -> None:
        await asyncio.gather(*(come(number, who) for number, who in enumerate(PEOPLE)))  # noqa: TID251 - a client's, and all end here

    asyncio.run(all_come())


class _QueuePrinter:
    """Shows what becomes of one of them."""

    def __init__(self, who: str, say: Callable[[str, str], None]) -> None:
        self._who = who
        self._say = say
        self._last_line: str | None = None

    def show(self, chunk: TextChunk) -> None:
        """What is said is the same for everybody."""

    def show_state(self, event: Any, transcript: DuplexTranscript) -> None:
        """A place in the queue, or with the model."""
        if isinstance(event, SessionCreated):
            self._print_change("has the place")
        elif isinstance(event, SessionQueued):
            self._print_change(duplex_stage.format_queue_position(transcript.queue_positions[-1]))

    def _print_change(self, line: str) -> None:
        if line != self._last_line:
            self._last_line = line
            self._say(self._who, line)

    def show_latencies(self, transcript: DuplexTranscript, first: int) -> None:
        """Nobody reads how long it took."""
