"""What a MiniCPM-o session sends: events with their time, what was measured, and what it has cost so far."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, UnsetType

from antiphon.engine_api import commands, events as engine_events
from antiphon.errors import ApiError
from antiphon.protocols.session import Effect, Send, SendToEngine
from antiphon.wire.minicpmo import server_events as events


class TokenTotals:
    """Tokens of a session, of all its answers together."""

    def __init__(self) -> None:
        self._finished_usage = engine_events.Usage(id="", input_tokens=0, output_tokens=0)
        self._open_usage: dict[str, engine_events.Usage] = {}

    def update(self, usage: engine_events.Usage) -> None:
        """So much for an answer under way; takes the place of what was said of it before."""
        self._open_usage[usage.id] = usage

    def finish(self, id: str) -> None:
        """The answer is over."""
        if (used := self._open_usage.pop(id, None)) is not None:
            self._finished_usage = _add_usage(self._finished_usage, used)

    def wire_usage(self) -> events.Usage | UnsetType:
        """All of it, where anything was counted."""
        used = self._finished_usage
        for each in self._open_usage.values():
            used = _add_usage(used, each)
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


def _add_usage(one: engine_events.Usage, other: engine_events.Usage) -> engine_events.Usage:
    return engine_events.Usage(
        id="",
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        input_audio_tokens=one.input_audio_tokens + other.input_audio_tokens,
        input_image_tokens=one.input_image_tokens + other.input_image_tokens,
        output_audio_tokens=one.output_audio_tokens + other.output_audio_tokens,
    )


class MinicpmoOutbox:
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
        self.shows_remaining_at: float | None = None
        self.token_totals = TokenTotals()
        self._pending_metrics: dict[str, Any] = {}
        self._pending_notes: list[str] = []
        self._all_notes: set[str] = set()

    def send(self, kind: Any, /, **fields: Any) -> None:
        """Send the client an event of that kind."""
        self.effects.append(Send(kind(**fields, server_send_ts=self.at if self.has_begun else UNSET)))

    def send_error(self, fault: ApiError, code: str | None = None) -> None:
        """Tell the client what went wrong; `code` takes the place of the fault's."""
        code, param = code or fault.code or fault.type, fault.param if fault.param is not None else UNSET
        self.send(events.ErrorEvent, error=events.Error(code=code, message=fault.message, type=fault.type, param=param))

    def send_to_engine(self, command: commands.EngineCommand) -> None:
        """Tell the engine a word."""
        self.effects.append(SendToEngine(command))

    def drain(self) -> list[Effect]:
        """All that is to be done; from here on it is empty."""
        effects, self.effects = self.effects, []
        return effects

    # What goes with answers

    def add_metrics(self, metrics: dict[str, Any]) -> None:
        """What was measured goes with the next event that can carry it."""
        self._pending_metrics.update(metrics)

    def add_note(self, text: str) -> None:
        """Likewise what a person should know about the session; once."""
        if text not in self._all_notes:
            self._all_notes.add(text)
            self._pending_notes.append(text)

    def take_metrics(self, extra: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """All that waited to be told, with `more`, and how much time is left once that is to be told."""
        metrics, self._pending_metrics = {**self._pending_metrics, **extra}, {}
        if self._pending_notes:
            metrics["notes"], self._pending_notes = self._pending_notes, []
        if self.shows_remaining_at is not None and self.at >= self.shows_remaining_at:
            metrics["remaining_s"] = self.remaining_s
        return metrics

    @property
    def remaining_s(self) -> float:
        """How long the session may still last."""
        return max(0.0, round((self.ends_at or self.at) - self.at, 1))
