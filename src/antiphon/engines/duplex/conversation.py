"""
A conversation in full duplex with an engine that takes turns: who speaks, who listens, and what is said when.

The person goes first. Whoever speaks while an answer is being said, or made, cuts it short, and so does being told to listen; what was
not heard of it is forgotten. A turn that is over is answered. Of every piece of sound that finds nothing being said, it is told that the
engine listens; so it is behind everything that was said.

Time is the sound that came in; of the piece in which an answer begins, only what came after its beginning. Where none comes in time, as
a microphone was switched off or the network stalls, time is the loop's until some does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from antiphon.audio import ms_of
from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Deliver, EngineOverrun
from antiphon.engine_api.options import TurnDetection, Voice
from antiphon.engines.duplex.echo_canceller import canceller
from antiphon.engines.duplex.history import Recent, remembered
from antiphon.engines.duplex.options import wishes
from antiphon.engines.duplex.playback import Answer, Ends
from antiphon.engines.duplex.vision import Sight

SLACK_MS = 500
"""How much more of an answer is sent ahead than a piece of the client's sound lasts: pieces come late, and a player must not run dry."""

MOST_PIECE_MS = 1_000
"""The longest piece of sound that is reckoned with; longer ones come from clients that send what they have."""

FORGOTTEN = 0.1
"""How much of its own length every piece takes off the longest: where they differ, the next may be as long as the last ones were."""

TICK_S = 0.1
"""How often the loop's clock is looked at, and how long before a player runs dry."""

PREFIX = "duplex_"


class Dialogue:
    """
    One conversation.

    Args:
        tell: tells the engine.
        deliver: takes words; never called from within what is told here.
    """

    def __init__(
        self, asked: commands.Converse, abilities: Abilities, sight: Sight, tell: Callable[[commands.ToEngine], None], deliver: Deliver
    ) -> None:
        self._asked = asked
        self._abilities = abilities
        self._wishes = wishes(asked.options, abilities)
        self._voice = _voice(asked.voice, abilities) if not self._wishes.is_silent else None
        self._sight = sight
        self._tell = tell
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._recent = Recent(asked.rate_hz)
        self._echo = canceller(asked.rate_hz, self._voice.rate_hz) if self._voice is not None else None
        self._history: tuple[turns.Turn, ...] = ()
        self._turn: str | None = None  # that is open
        self._answer: Answer | None = None
        self._answers = 0
        self._looked = 0
        self._before_cut: tuple[turns.Turn, ...] = ()  # what was known when somebody began to speak
        self._has_cut = False  # an answer, when they did
        self._is_owed = False  # an answer, once it is not to listen any more
        self._listens_next = False
        self._must_listen = False
        self._pieces: deque[tuple[float, bool]] = deque()  # that came, in milliseconds, and whether it must listen to them
        self._pieces_come = 0
        self._longest_ms = 0.0
        self._lead_ms = float(SLACK_MS + MOST_PIECE_MS)
        self._came_ms = 0.0
        self._heard_at = self._counted_at = self._loop.time()
        self._counted_from: float | None = None  # where time was counted up to since the last piece came
        self._room_ms = 0.0  # and how much of the next ones is more than that
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = self._is_closed = False
        self._out: list[talk_events.FromEngine] = []
        tell(commands.Configure(rate_hz=asked.rate_hz, turn_detection=_detection(abilities)))
        self._loop.call_soon(self._be_ready)

    # What the client says

    def see(self, word: commands.See) -> None:
        """The client sees this."""
        if self._asked.sees:
            self._sight.see(word)
            self.foresee()

    def listen(self) -> None:
        """Say nothing to the sound that comes next."""
        self._listens_next = True

    def hear(self, word: commands.Hear) -> None:
        """The sound goes on."""
        piece_ms = ms_of(len(word.pcm), self._asked.rate_hz)
        self._must_listen = self._listens_next or self._pieces_come < self._wishes.listens_first
        self._listens_next = False
        self._pieces_come += 1
        self._longest_ms = max(min(piece_ms, MOST_PIECE_MS), self._longest_ms - FORGOTTEN * piece_ms)
        self._lead_ms = SLACK_MS + self._longest_ms
        self._came_ms += piece_ms
        self._heard_at = self._counted_at = self._loop.time()
        if self._counted_from is not None:
            self._room_ms = (self._heard_at - self._counted_from) * 1000
        self._stop_timer()
        self._take_in(word)
        if not self._pieces:
            self._loop.call_soon(self._go_on)
        self._pieces.append((piece_ms, self._must_listen))

    def _take_in(self, word: commands.Hear) -> None:
        """Hear it without the echo of what is being said."""
        if self._echo is None:
            self._recent.hear(word.pcm)
            self._tell(word)
            return
        if pcm := self._echo.take(word.pcm):
            self._recent.hear(pcm)
            self._tell(commands.Hear(pcm))
        if self._echo.was_mistaken and self._turn is not None:
            self._take_back()

    def pause(self) -> None:
        """The client is behind."""
        self._is_paused = True

    def resume(self) -> None:
        """The client has caught up."""
        self._is_paused = False
        self._loop.call_soon(self._catch_up)

    def close(self) -> None:
        """Say nothing more."""
        self._is_closed = True
        self._stop_timer()

    # Time

    def _go_on(self) -> None:
        """Say what is due to the sound that came."""
        while self._pieces:
            piece_ms, must_listen = self._pieces.popleft()
            before = len(self._out)
            if must_listen:
                self._cut()
            self._let_pass(self._heard_of(piece_ms))
            if self._is_owed and not must_listen and self._turn is None:
                self._begin()
            if len(self._out) == before and not (self._answer is not None and self._answer.has_begun):
                self._out.append(talk_events.Listening())
        if self._counted_from is not None and self._counted_from < self._heard_at:
            self._counted_from = None
        self._flush()

    def _heard_of(self, piece_ms: float) -> float:
        """How much of an answer can have been heard in a piece's time."""
        if self._counted_from is None:
            return piece_ms
        ms = min(piece_ms, self._room_ms)
        self._room_ms -= ms
        return ms

    def _let_pass(self, ms: float) -> None:
        if self._answer is not None:
            self._answer.hear(ms)
            self._say_due()

    def _catch_up(self) -> None:
        self._say_due()
        self._flush()

    def _start_timer(self) -> None:
        if self._timer is None and self._answer is not None and self._answer.is_held and not self._is_paused:
            dry_at = self._heard_at + self._lead_ms / 1000
            self._timer = self._loop.call_at(max(dry_at, self._counted_at + 2 * TICK_S) - TICK_S, self._pass_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pass_time(self) -> None:
        self._timer = None
        passed_s, self._counted_at = self._loop.time() - self._counted_at, self._loop.time()
        self._counted_from = self._counted_at
        self._let_pass(passed_s * 1000)
        self._flush()

    # What the engine says

    def take(self, words: Sequence[talk_events.FromEngine]) -> None:
        """The engine says this."""
        for word in words:
            match word:
                case talk_events.SpeechStarted(id, at_ms):
                    self._person_starts(id, at_ms)
                case talk_events.SpeechStopped(id, at_ms):
                    self._person_stops(id, at_ms)
                case talk_events.Heard() | talk_events.HeardSegment() | talk_events.HeardAll() | talk_events.NotHeard():
                    pass  # the client has no place for it
                case _:
                    self._answered(word)
        self._say_due()
        self._flush()

    def _answered(self, word: talk_events.FromEngine) -> None:
        answer = self._answer
        if answer is not None and word.id == answer.id:
            if self._looked and not isinstance(word, Ends):
                answer.take([talk_events.Measured(answer.id, {"vision_slices": self._looked})])
                self._looked = 0
            if not answer.take([word]) and not isinstance(word, Ends):
                self._tell(commands.Cancel(answer.id))
        elif not word.id.startswith(PREFIX):  # else it was cut short
            self._out.append(word)

    def _person_starts(self, turn_id: str, at_ms: int) -> None:
        if self._echo is not None and self._echo.is_echo(at_ms):
            self._tell(commands.Forget())
            return
        self._turn = turn_id
        self._recent.open(at_ms)
        self._sight.attend(is_spoken_to=True)
        before = len(self._out)
        self._before_cut, self._has_cut = self._history, self._answer is not None
        if self._answer is not None:
            self._answer.hear(sum(self._heard_of(piece_ms) for piece_ms, _ in self._pieces))
        self._cut()
        if len(self._out) > before and self._pieces:
            self._pieces.popleft()  # it is told already that the engine listens
        self.foresee()

    def _take_back(self) -> None:
        """Nobody spoke but the echo: say again what it cut short."""
        self._tell(commands.Forget())
        self._recent.close(0)
        self._sight.attend(is_spoken_to=False)
        self._turn = None
        self._history, self._is_owed = self._before_cut, self._is_owed or self._has_cut

    def _person_stops(self, turn_id: str, at_ms: int) -> None:
        if turn_id != self._turn:  # it was none
            return
        said = self._said(turn_id, self._recent.close(at_ms))
        self._looked = sum(isinstance(part, turns.ImagePart) for part in said.parts)
        self._history = remembered(self._history, said)
        self._sight.told()
        self._sight.attend(is_spoken_to=False)
        self._turn = None
        self._is_owed = True
        if not self._must_listen:
            self._begin()

    def _said(self, turn_id: str, pcm: bytes) -> turns.Message:
        return turns.Message("user", (*self._sight.parts(), turns.SpeechPart(pcm, self._asked.rate_hz, turn_id)))

    # Answers

    def foresee(self) -> None:
        """Tell the engine what it will be asked when the open turn ends, so that it can begin."""
        if self._abilities.foresees and self._turn is not None and not self._must_listen:
            self._tell(commands.Foresee(self._ask(remembered(self._history, self._said(self._turn, b"")))))

    def _ask(self, history: tuple[turns.Turn, ...]) -> commands.Respond:
        return commands.Respond(
            id=f"{PREFIX}{self._answers + 1}",
            history=history,
            instructions=self._asked.instructions,
            sampling=self._wishes.sampling,
            truncate=self._abilities.truncation,
            voice=self._voice,
        )

    def _begin(self) -> None:
        ask = self._ask(self._history)
        self._is_owed = False
        self._answers += 1
        self._answer = Answer(ask.id, (self._voice or Voice()).rate_hz)
        try:
            self._tell(ask)
        except EngineOverrun as overrun:
            self._answer.take([talk_events.Broke(id=ask.id, message=f"The model is overloaded: {overrun}.", status=503, retry_after_s=1)])

    def _say_due(self) -> None:
        answer = self._answer
        if answer is None or self._must_listen or self._is_paused:
            return
        had_begun, before = answer.has_begun, len(self._out)
        self._out += answer.due(self._lead_ms)
        self._play(self._out[before:])
        if answer.has_begun and not had_begun:
            self._counted_from = self._counted_at = self._loop.time()
            self._room_ms = 0.0
        if answer.is_over:
            self._end(answer)
            if len(self._out) > before:
                self._out.append(talk_events.Listening())

    @property
    def _now_ms(self) -> float:
        """Where the client's sound is by now: what it has not sent yet is a piece at most."""
        return self._came_ms + min((self._loop.time() - self._heard_at) * 1000, MOST_PIECE_MS)

    def _play(self, words: Sequence[talk_events.FromEngine]) -> None:
        """The client will play these."""
        if self._echo is not None:
            for word in words:
                if isinstance(word, talk_events.Sound):
                    self._echo.play(word.pcm, self._now_ms)

    def _cut(self) -> None:
        """Fall silent."""
        answer = self._answer
        if answer is None:
            return
        self._tell(commands.Cancel(answer.id))
        self._end(answer)
        if answer.has_begun:
            if self._echo is not None:
                self._echo.stop(self._now_ms)
            used = answer.used
            self._out += (*((used,) if used is not None else ()), talk_events.Ended(answer.id, "cancelled"), talk_events.Listening())

    def _end(self, answer: Answer) -> None:
        self._answer = None
        self._looked = 0
        if (message := answer.message()) is not None:
            self._history = remembered(self._history, message)

    # Telling

    def _be_ready(self) -> None:
        self._out.append(talk_events.Ready(self._notes()))
        self._flush()

    def _notes(self) -> dict[str, Any]:
        """What becomes of all that was asked for."""
        asked, notes = self._asked, dict[str, Any]()
        if asked.sees:
            notes["video"] = self._sight.note
        if asked.voice is not None and not self._wishes.is_silent and self._voice is None:
            notes["audio"] = "not made"
        if asked.reference is not None or (asked.voice is not None and asked.voice.reference is not None):
            is_used = self._voice is not None and self._voice.reference is not None
            notes["voice_reference"] = "used" if is_used else "not used"
        if self._wishes.unknown:
            notes["ignored"] = list(self._wishes.unknown)
        return notes

    def _flush(self) -> None:
        words, self._out = self._out, []
        if words and not self._is_closed:
            self._deliver(words)
        if not self._is_closed:
            self._start_timer()


def _detection(abilities: Abilities) -> TurnDetection:
    return TurnDetection("semantic_vad" if "semantic_vad" in abilities.turn_detection else "server_vad")


def _voice(asked: Voice | None, abilities: Abilities) -> Voice | None:
    """The voice to answer with, as far as the engine has it."""
    if asked is None or not abilities.audio_out:
        return None
    name = asked.name if not abilities.voices or asked.name in abilities.voices else None
    return structs.replace(asked, name=name, reference=asked.reference if abilities.clones else None)
