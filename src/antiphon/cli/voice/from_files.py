"""A conversation with recordings in place of a person."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from antiphon.audio import ms_of
from antiphon.cli.common.client import ANSWER_S, Client
from antiphon.cli.voice.audio import PIECE_MS, RATE_HZ, SILENCE, Recording, pieces
from antiphon.cli.voice.realtime_session import Asked, Heard, Line, connected, refusal
from antiphon.cli.voice.transcript import Record, Turn, Words
from antiphon.errors import UpstreamTrouble
from antiphon.wire.realtime.client_events import InputAudioBufferAppend
from antiphon.wire.realtime.server_events import ErrorEvent

SILENCE_MS = 15_000
"""After so much of it a server that waits for a turn's end is not waiting for silence; the most that any of them waits is 8 s."""

HURRIED_SILENCE_MS = 1_000
"""Of the silence, what may be sent at once; more would have to be listened to while the answer is made."""

TRANSCRIPT_S = 5.0
"""How long an answer may be over before what it answers is known."""

SETTLING_S = 0.5
"""How long after an answer a server may take to tell that someone had gone on speaking."""


class Outcome(NamedTuple):
    """
    What came of a conversation.

    Attributes:
        sent: how many events there were, by type; `received` likewise.
    """

    turns: Sequence[Turn]
    sent: Counter[str]
    received: Counter[str]


class Shown(Protocol):
    """What shows a conversation."""

    def show(self, words: Words) -> None:
        """Show words as they come."""

    def begin(self, recording: Recording) -> None:
        """A recording will be said."""

    def over(self, turn: Turn) -> None:
        """A turn is answered."""


async def held(client: Client, asked: Asked, recordings: Sequence[Recording], shown: Shown, *, is_fast: bool = False) -> Outcome:
    """
    Hold a whole conversation.

    Raises:
        UpstreamTrouble: it came to nothing.
    """
    record = Record()
    async with connected(client, asked) as line:
        conversation = Conversation(line, record, shown.show, is_fast=is_fast)
        for recording in recordings:
            before = len(record.turns)
            shown.begin(recording)
            await conversation.say(recording)
            for turn in record.turns[before:]:
                shown.over(turn)
    return Outcome(record.turns, line.sent, line.received)


class Conversation:
    """
    Says recordings, one after another, and hears the answers out.

    Args:
        show: takes words as they come.
        is_fast: whether sound is sent as fast as it goes, and not as fast as it sounds.
    """

    def __init__(self, line: Line, record: Record, show: Callable[[Words], None], *, is_fast: bool = False) -> None:
        self._line = line
        self._record = record
        self._show = show
        self._is_fast = is_fast
        self._due_s = 0.0
        self._sent_ms = 0.0
        self._first = 0

    async def say(self, recording: Recording, *, silence_ms: float = SILENCE_MS) -> None:
        """
        Say a recording, and wait for what is answered.

        Raises:
            UpstreamTrouble: the server refuses something, hears nobody speak, or doesn't answer.
        """
        self._record.source, self._first = recording.name, len(self._record.turns)
        self._due_s = self._now()
        for piece in pieces(recording.pcm):
            await self._send(piece, hurries=self._is_fast)
        end_ms = self._sent_ms
        while not await self._is_settled(end_ms):
            if self._is_over:
                await self._hear_more()
            else:
                await self._fall_silent(silence_ms)

    async def _is_settled(self, end_ms: float) -> bool:
        """Whether all is answered that was said in the `end_ms` of sound until the recording's end."""
        if not self._is_answered:
            return False
        heard_ms = self._record.turns[-1].speech_end_ms
        if heard_ms is None or heard_ms >= end_ms:
            return True
        heard = await self._line.hear(SETTLING_S)  # what comes after that turn may be silence, or more speech
        if heard is not None:
            self._take(heard)
        return heard is None

    @property
    def _is_over(self) -> bool:
        """Whether the server has heard the end of what was said."""
        turns = self._record.turns[self._first :]
        return not self._record.is_speaking and bool(turns) and turns[-1].ended_s is not None

    @property
    def _is_answered(self) -> bool:
        return self._is_over and self._record.turns[-1].status is not None and self._record.turns[-1].is_transcribed

    async def _fall_silent(self, silence_ms: float) -> None:
        self._due_s = max(self._due_s, self._now())
        sent_ms = 0.0
        while not self._is_over:
            if sent_ms >= silence_ms:
                raise UpstreamTrouble(self._unheard())
            await self._send(SILENCE, hurries=self._is_fast and sent_ms < HURRIED_SILENCE_MS)
            sent_ms += PIECE_MS

    def _unheard(self) -> str:
        if self._record.is_speaking:
            return f"The server still hears someone speak after the end of {self._record.source}."
        return f"The server heard nobody speak in {self._record.source}."

    async def _hear_more(self) -> None:
        turn = self._record.turns[-1]
        is_answered = turn.status is not None
        heard = await self._line.hear(TRANSCRIPT_S if is_answered else ANSWER_S)
        if heard is not None:
            self._take(heard)
        elif is_answered:
            turn.not_understood = "the server doesn't say"
        else:
            raise UpstreamTrouble(f"The server has said nothing for {ANSWER_S} s.")

    # The clock, and what comes meanwhile

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _send(self, piece: bytes, *, hurries: bool) -> None:
        """Send a piece, and hear what comes until the next is due."""
        await self._line.say(InputAudioBufferAppend(audio=piece))
        self._sent_ms += ms_of(len(piece), RATE_HZ)
        self._due_s = self._now() if hurries else self._due_s + PIECE_MS / 1000
        while (heard := await self._line.hear(self._due_s - self._now())) is not None:
            self._take(heard)

    def _take(self, heard: Heard) -> None:
        if isinstance(heard.event, ErrorEvent):
            raise refusal(heard.event.error)
        for words in self._record.take(heard.event, heard.at_s):
            self._show(words)
