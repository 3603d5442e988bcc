"""What a MiniCPM-o session sends: events with their time, what was measured, and what it has cost so far."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, UnsetType

from antiphon.engine_api import commands, events as talk_events
from antiphon.errors import Fault
from antiphon.protocols.session import Effect, Send, Tell
from antiphon.wire.minicpmo import server_events as events


class Spending:
    """Tokens of a session, of all its answers together."""

    def __init__(self) -> None:
        self._settled = talk_events.Used(id="", input_tokens=0, output_tokens=0)
        self._open: dict[str, talk_events.Used] = {}

    def count(self, used: talk_events.Used) -> None:
        """So much for an answer under way; takes the place of what was said of it before."""
        self._open[used.id] = used

    def settle(self, id: str) -> None:
        """The answer is over."""
        if (used := self._open.pop(id, None)) is not None:
            self._settled = _sum(self._settled, used)

    def told(self) -> events.Usage | UnsetType:
        """All of it, where anything was counted."""
        used = self._settled
        for each in self._open.values():
            used = _sum(used, each)
        if not used.input_tokens and not used.output_tokens:
            return UNSET
        heard, seen, said = used.input_audio_tokens, used.input_image_tokens, used.output_audio_tokens
        return events.Usage(
            total_tokens=used.input_tokens + used.output_tokens,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            input_token_details=events.InputTokens(
                text_tokens=max(0, used.input_tokens - heard - seen), audio_tokens=heard, vision_tokens=seen
            ),
            output_token_details=events.OutputTokens(text_tokens=max(0, used.output_tokens - said), audio_tokens=said),
        )


def _sum(one: talk_events.Used, other: talk_events.Used) -> talk_events.Used:
    return talk_events.Used(
        id="",
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        input_audio_tokens=one.input_audio_tokens + other.input_audio_tokens,
        input_image_tokens=one.input_image_tokens + other.input_image_tokens,
        output_audio_tokens=one.output_audio_tokens + other.output_audio_tokens,
    )


class Out:
    """
    What a session does about the event that it is handling.

    Attributes:
        effects: in order.
        at: when that is, in Unix seconds.
        has_begun: whether the session was created; events have their time from then on.
        ends_at: when the session will be over; None while nobody knows.
        tells_rest_at: from when on clients are told how much of it is left.
        spending: what the answers have cost.
    """

    def __init__(self, session_id: str) -> None:
        self.effects: list[Effect] = []
        self.at = 0.0
        self.has_begun = False
        self.session_id = session_id
        self.ends_at: float | None = None
        self.tells_rest_at: float | None = None
        self.spending = Spending()
        self._measured: dict[str, Any] = {}
        self._notes: list[str] = []
        self._noted: set[str] = set()

    def send(self, kind: Any, /, **fields: Any) -> None:
        """Send the client an event of that kind."""
        self.effects.append(Send(kind(**fields, server_send_ts=self.at if self.has_begun else UNSET)))

    def refuse(self, fault: Fault, code: str | None = None) -> None:
        """Tell the client what went wrong; `code` takes the place of the fault's."""
        code, param = code or fault.code or fault.type, fault.param if fault.param is not None else UNSET
        self.send(events.ErrorEvent, error=events.Error(code=code, message=fault.message, type=fault.type, param=param))

    def tell(self, word: commands.ToEngine) -> None:
        """Tell the engine a word."""
        self.effects.append(Tell(word))

    def take(self) -> list[Effect]:
        """All that is to be done; from here on it is empty."""
        effects, self.effects = self.effects, []
        return effects

    # What goes with answers

    def measure(self, metrics: dict[str, Any]) -> None:
        """What was measured goes with the next event that can carry it."""
        self._measured.update(metrics)

    def note(self, text: str) -> None:
        """Likewise what a person should know about the session; once."""
        if text not in self._noted:
            self._noted.add(text)
            self._notes.append(text)

    def metrics(self, more: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """All that waited to be told, with `more`, and how much time is left once that is to be told."""
        metrics, self._measured = {**self._measured, **more}, {}
        if self._notes:
            metrics["notes"], self._notes = self._notes, []
        if self.tells_rest_at is not None and self.at >= self.tells_rest_at:
            metrics["remaining_s"] = self.remaining_s
        return metrics

    @property
    def remaining_s(self) -> float:
        """How long the session may still last."""
        return max(0.0, round((self.ends_at or self.at) - self.at, 1))
