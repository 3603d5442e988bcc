"""
Dialogues with a Realtime session: `>>` sends something to it, `<<` expects each of its outputs, in order.

The client's events are JSON in its dialect, as on the socket. In every test, each server event must be valid by the client's types,
have a unique id and fit into a small frame.
"""

import base64
import itertools
import json
from typing import Any

import openai.types.beta.realtime as original_beta
import openai.types.realtime as original

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError
from antiphon.protocols.realtime.session import RealtimeSession, UnreadableRealtimeEvent
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.protocols.session import Close, CountTokens, FromClient, FromEngine, Hangup, Send, SendToEngine, Shutdown, Tick, WakeAt
from antiphon.wire.realtime.client_events import find_event_id
from antiphon.wire.realtime.dialects import DIALECTS
from antiphon.wire.realtime.server_events import ConversationItemRetrieved, RateLimit
from support.wire.adapters import adapter

VALID: dict[str, Any] = {"ga": original.RealtimeServerEvent, "beta": original_beta.RealtimeServerEvent}
FRAME_LIMIT_BYTES, RETRIEVED_LIMIT_BYTES = 1 << 20, 16 << 20
BEGUN_AT = 1_000.0
EVENTS = (Tick, Hangup, Shutdown)

TEXT = Capabilities(tools=True)
"""A text engine."""

OMNI = Capabilities(
    tools=True,
    images=True,
    audio_in=True,
    audio_out=True,
    listens=True,
    turn_detection=("server_vad", "semantic_vad"),
    transcribes=True,
    noise_reduction=("near_field", "far_field"),
    voices=("alloy", "marin"),
    truncation=True,
    efforts=("low", "high"),
)
"""An engine with all capabilities."""

LIMITS = (RateLimit(name="requests", limit=10, remaining=9, reset_seconds=6.0),)


class Anything:
    """Equal to anything."""

    def __eq__(self, other):
        return other is not MISSING

    __hash__ = None


class Missing:
    """Stands for a field that is absent."""


ANY = Anything()
MISSING = Missing()


def event(type, **fields):
    """An event as JSON: complete if it is sent, the relevant fields if it is expected."""
    return {"type": type, **fields}


def error(code, event_id=None, **fields):
    """The event for a client's error."""
    return event("error", error={"code": code, "event_id": event_id, **fields})


def base64_of(sound):
    return base64.b64encode(sound).decode()


def silence(ms, rate_hz=24_000):
    return bytes(ms * rate_hz // 1000 * 2)


def sound(pcm):
    """The event that appends audio."""
    return event("input_audio_buffer.append", audio=base64_of(pcm))


class Tells:
    """A command to the engine, by its type and relevant fields."""

    def __init__(self, kind, **fields):
        self.kind = kind
        self.fields = fields

    def __eq__(self, word):
        return type(word) is self.kind and all(getattr(word, name) == value for name, value in self.fields.items())

    __hash__ = None

    def __repr__(self):
        return f"Tells({self.kind.__name__}, {self.fields})"


def responds(id="resp_1", **fields):
    return Tells(commands.Respond, id=id, **fields)


class Closes:
    """The end of the session, by its error code."""

    def __init__(self, code=None):
        self.code = code

    def __eq__(self, effect):
        return isinstance(effect, Close) and self.code == (effect.error.code if effect.error else None)

    __hash__ = None

    def __repr__(self):
        return f"Closes({self.code!r})"


def fits(wanted, got):
    """Whether a value matches what is expected; objects may have more fields."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        return all(fits(value, got.get(name, MISSING)) for name, value in wanted.items())
    if isinstance(wanted, list | tuple) and isinstance(got, list):
        return len(wanted) == len(got) and all(map(fits, wanted, got))
    return wanted is got if wanted is MISSING else wanted == got


# What the official client's types lack of the beta, though its server accepted and sent it.
LATER = ("mcp", "mcp_list_tools", "input_image")
SECRET = {"value": "ek_1", "expires_at": 1}


def known_to_the_beta(value):
    if isinstance(value, list):
        return [known_to_the_beta(each) for each in value if not (isinstance(each, dict) and each.get("type") in LATER)]
    if not isinstance(value, dict):
        return value
    fields = {name: known_to_the_beta(each) for name, each in value.items() if name not in ("model", "tool_choice")}
    if value.get("type") == "transcription_session.updated":
        fields["session"]["client_secret"] = SECRET
    return fields


def check_valid(dialect, frame):
    """Validate by the official client's types, strictly."""
    fields = json.loads(frame)
    if dialect == "beta":
        if fields.get("item", {}).get("type") in LATER:
            return
        frame = json.dumps(known_to_the_beta(fields))
    adapter(VALID[dialect]).validate_json(frame, strict=True)


def numbered():
    """Predictable ids: `resp_1`, `resp_2`, `item_1`."""
    counts: dict[str, Any] = {}
    return lambda prefix: f"{prefix}_{next(counts.setdefault(prefix, itertools.count(1)))}"


class Dialogue:
    """
    A session between its client and its engine.

    Attributes:
        pending: output that was not expected yet: events as JSON, commands for the engine, and the end.
        at: the time, which only `wait` advances.
        wakes_at: when the session's timer is due.
        log: all server events, as JSON.
        came: all server events before their translation into the client's dialect, and all commands for the engine.
    """

    def __init__(self, capabilities=OMNI, dialect="ga", is_new=False, **opening):
        self.at = BEGUN_AT
        self.pending: list[Any] = []
        self.log: list[dict[str, Any]] = []
        self.spent: list[int] = []
        self.frames: list[bytes] = []
        self.came: list[Any] = []
        self.wakes_at: float | None = None
        self.dialect = DIALECTS[dialect]
        config = RealtimeSessionConfig(
            **{"model": "parrot", "capabilities": capabilities, "dialect": dialect, "rate_limits": lambda: LIMITS} | opening
        )
        self.session = RealtimeSession(config, numbered())
        self._hear(FromClient(config, self.at))
        if not is_new:
            self.pending.clear()

    def __rshift__(self, said):
        assert self.pending == [], "there is more that came, and was not spoken of"
        if isinstance(said, bytes | dict):
            self._say(said if isinstance(said, bytes) else json.dumps(said).encode())
        elif isinstance(said, EVENTS):
            self._hear(said)
        else:
            self._hear(FromEngine(said if isinstance(said, tuple) else (said,), self.at))
        return self

    def __lshift__(self, wanted):
        for each in wanted.split() if isinstance(wanted, str) else [wanted]:
            assert self.pending, f"{each} did not come, and nothing else did"
            came = self.pending.pop(0)
            shown = event(each) if isinstance(each, str) else each
            assert fits(shown, came), f"expected {each}, but there came {came}, and then {self.pending}"
        return self

    def _say(self, frame):
        try:
            said: Any = self.dialect.decode_client(frame)
        except ClientError as mistake:
            said = UnreadableRealtimeEvent(mistake, find_event_id(frame))
        self._hear(FromClient(said, self.at))

    def _hear(self, happened):
        for effect in self.session.handle(happened):
            match effect:
                case Send(sent):
                    self.came.append(sent)
                    self._send(sent)
                case SendToEngine(word):
                    self.came.append(word)
                    self.pending.append(word)
                case WakeAt(at):
                    assert at is None or at >= self.at
                    self.wakes_at = at
                case CountTokens(tokens):
                    self.spent.append(tokens)
                case _:
                    self.pending.append(effect)

    def _send(self, sent):
        frame = self.dialect.encode_server(sent)
        if frame is None:
            return
        is_retrieved = isinstance(sent, ConversationItemRetrieved)
        assert len(frame) <= (RETRIEVED_LIMIT_BYTES if is_retrieved else FRAME_LIMIT_BYTES)
        check_valid(self.dialect.name, frame)
        fields = json.loads(frame)
        self.frames.append(frame)
        self.log.append(fields)
        self.pending.append(fields)

    # Shortcuts

    def wait(self, seconds):
        """Advance the time; timers that are due meanwhile fire."""
        until = self.at + seconds
        while self.wakes_at is not None and self.wakes_at <= until and self.session.end_reason is None:
            self.at, self.wakes_at = self.wakes_at, None
            self._hear(Tick(self.at))
        self.at = until
        return self

    def skip(self):
        """Skip the pending output."""
        self.pending.clear()
        return self

    def events(self):
        """The pending events, which count as expected then."""
        came, self.pending = [each for each in self.pending if isinstance(each, dict)], []
        return came

    def update(self, **fields):
        """Update the session, and skip its output."""
        kind = {"session": {"type": "realtime", **fields}} if self.dialect.name == "ga" else {"session": fields}
        self >> event("session.update", **kind)
        assert self.log[-1]["type"] == "session.updated", self.log[-1]
        return self.skip()

    def answer(self, *words, id="resp_1", reason="stop"):
        """Request a response, let it end, and skip its output."""
        self >> event("response.create")
        self.skip()
        self >> (*words, events.ResponseEnded(id, reason))
        return self.skip()

    def turn(self, id, ms=400, **more):
        """Add a spoken turn of the user, and skip its output."""
        start_ms = self.session._input_audio.buffer.now_ms
        self >> sound(silence(ms))
        self.skip()
        self >> (events.SpeechStarted(id, start_ms), events.SpeechStopped(id, start_ms + ms))
        return self.skip()
