"""What a MiniCPM-o session sends: events with their time, metrics and token counts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from msgspec import UNSET

from antiphon.engine_api import events as engine_events
from antiphon.errors import ApiError
from antiphon.protocols.outbox import Outbox
from antiphon.protocols.session import Send
from antiphon.wire.codec.types import JsonDict, Opt
from antiphon.wire.minicpmo import server_events as events

Kind = Literal["listen", "text", "audio"]
"""What a piece of a response is."""


class TokenTotals:
    """The tokens of a session: the sum over its responses."""

    def __init__(self) -> None:
        self._finished_usage = engine_events.Usage(id="", input_tokens=0, output_tokens=0)
        self._open_usage: dict[str, engine_events.Usage] = {}
        self._wire_usage: Opt[events.Usage] | None = None  # until another is counted: each piece of audio carries it

    def update(self, usage: engine_events.Usage) -> None:
        """Count a response in progress; replaces its previous count."""
        self._open_usage[usage.id] = usage
        self._wire_usage = None

    def finish(self, id: str) -> None:
        """Make a response's count final."""
        if (usage := self._open_usage.pop(id, None)) is not None:
            self._finished_usage = _add_usage(self._finished_usage, usage)
            self._wire_usage = None

    def wire_usage(self) -> Opt[events.Usage]:
        """The total as the wire has it, the same object until it grows; `UNSET` if nothing was counted."""
        if self._wire_usage is None:
            self._wire_usage = self._sum()
        return self._wire_usage

    def _sum(self) -> Opt[events.Usage]:
        # MiniCPM-o: `usage` is the sum of the session so far and never shrinks; openbmb-realtime takes it as such.
        total = self._finished_usage
        for usage in self._open_usage.values():
            total = _add_usage(total, usage)
        if not total.input_tokens and not total.output_tokens:
            return UNSET
        audio_in, images_in, audio_out = total.input_audio_tokens, total.input_image_tokens, total.output_audio_tokens
        return events.Usage(
            total_tokens=total.input_tokens + total.output_tokens,
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            input_token_details=events.InputTokens(
                text_tokens=max(0, total.input_tokens - audio_in - images_in), audio_tokens=audio_in, vision_tokens=images_in
            ),
            output_token_details=events.OutputTokens(text_tokens=max(0, total.output_tokens - audio_out), audio_tokens=audio_out),
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


class MinicpmoOutbox(Outbox[events.ServerEvent]):
    """
    The effects of a MiniCPM-o session, and what its events carry beside their own fields.

    Attributes:
        at: the time of the event being handled, in Unix seconds.
        has_begun: whether the session was created; events carry their time from then on.
        ends_at: when the session will end; None before a worker is assigned.
        shows_remaining_at: from when on metrics say how much time is left.
        token_totals: of all responses.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__()
        self.at = 0.0
        self.has_begun = False
        self.session_id = session_id
        self.ends_at: float | None = None
        self.shows_remaining_at: float | None = None
        self.token_totals = TokenTotals()
        self._pending_metrics: JsonDict = {}
        self._pending_notes: list[str] = []
        self._all_notes: set[str] = set()

    def stamp(self) -> Mapping[str, object]:
        # MiniCPM-o: events of the queue have no time, all later ones do.
        return {"server_send_ts": self.at if self.has_begun else UNSET}

    def send_delta(self, kind: Kind, response_id: str, input_id: Opt[str], **fields: Any) -> None:
        """Send a piece of a response, with the metrics that wait."""
        # As `send` does it, which nearly every event is spared.
        self.effects.append(
            Send(
                events.OutputDelta(
                    kind=kind,
                    session_id=self.session_id,
                    response_id=response_id,
                    input_id=input_id,
                    metrics=self.take_metrics(),
                    server_send_ts=self.at if self.has_begun else UNSET,
                    **fields,
                )
            )
        )

    def send_error(self, error: ApiError) -> None:
        """Send the client an `error` event."""
        param = error.param if error.param is not None else UNSET
        wire_error = events.Error(code=error.code or error.type, message=error.message, type=error.type, param=param)
        self.send(events.ErrorEvent, error=wire_error)

    # Metrics and notes

    def add_metrics(self, metrics: JsonDict) -> None:
        """Attach metrics to the next event that can carry them."""
        self._pending_metrics.update(metrics)

    def add_note(self, text: str) -> None:
        """Attach a note for the user, likewise; each text is sent once in a session."""
        if text not in self._all_notes:
            self._all_notes.add(text)
            self._pending_notes.append(text)

    def take_metrics(self, extra: Mapping[str, object] = MappingProxyType({})) -> JsonDict:
        """The waiting metrics and notes with `extra`, and the remaining time once the end is near."""
        metrics, self._pending_metrics = {**self._pending_metrics, **extra}, {}
        if self._pending_notes:
            metrics["notes"], self._pending_notes = self._pending_notes, []
        if self.shows_remaining_at is not None and self.at >= self.shows_remaining_at:
            metrics["remaining_s"] = self.remaining_s
        return metrics

    @property
    def remaining_s(self) -> float:
        """How long the session may still last, in seconds."""
        return max(0.0, round((self.ends_at or self.at) - self.at, 1))
