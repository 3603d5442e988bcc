"""
Dialogues with a MiniCPM-o session: `>>` sends something to it, `<<` expects each of its outputs, in order.

The client's events are JSON, as on the socket. In every test, all output is checked against the rules of a session.
"""

import base64
import json
import struct
from typing import Any

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError
from antiphon.protocols.minicpmo.session import (
    ClientThrottled,
    ConnectionResumed,
    MinicpmoSession,
    MinicpmoSessionConfig,
    UnreadableMinicpmoEvent,
)
from antiphon.protocols.session import Close, FromClient, FromEngine, Hangup, Observe, Send, SendToEngine, Shutdown, Tick, WakeAt
from antiphon.wire.minicpmo.client_events import decode_client
from antiphon.wire.minicpmo.server_events import encode_server
from support.protocols.realtime_dialogues import fits, numbered

BEGUN_AT = 1_000.0
ID = "sess_1"

ALL = Capabilities(images=True, audio_in=True, audio_out=True, full_duplex=True, sees=True, videos=True, clones=True)
"""An engine with all capabilities."""

TEXT = Capabilities()
"""A text engine."""


def event(type, **fields):
    """An event as JSON: complete if it is sent, the relevant fields if it is expected."""
    return {"type": type, **fields}


def base64_of(content):
    return base64.b64encode(content).decode()


def floats(*samples):
    return struct.pack(f"<{len(samples)}f", *samples)


def pcm(*numbers):
    return struct.pack(f"<{len(numbers)}h", *numbers)


def jpeg():
    """The start of a JPEG file, up to the size of the image."""
    return b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 11, 8, 2, 2, 1) + b"\x01\x11\x00\xff\xd9"


HALF = base64_of(floats(0.5))
"""A chunk of a client's audio; the engine gets `HALF_PCM`."""
HALF_PCM = pcm(16384)


def init(**payload):
    return event("session.init", payload=payload)


def append(audio=HALF, **more):
    return event("input.append", input={"audio": audio, **more})


def ask(*messages, **more):
    """A question in chat; messages are user texts, or complete."""
    told = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
    return event("input.append", input={"messages": told, **more})


def delta(kind, **fields):
    return event("response.output.delta", kind=kind, **fields)


def closed(reason, **fields):
    return event("session.closed", reason=reason, **fields)


def error(code, **fields):
    return event("error", error={"code": code, **fields})


ASSIGNED = events.WorkerAssigned("q_1")
READY = events.DuplexStarted({"prefill_ms": 5})


class Laws:
    """
    The rules of every session.

    Attributes:
        asked: the engine's ids of requests, in order, and of those that ended.
    """

    def __init__(self) -> None:
        self.types: list[str] = []
        self.is_closed = False
        self.done: set[str] = set()
        self.given = 0
        self.told: list[Any] = []

    def sent(self, fields):
        """The session sent an event."""
        type = fields["type"]
        assert not self.is_closed and "session.closed" not in self.types, "the end is the last that comes"
        if type in ("session.queued", "session.queue_update"):
            assert "session.queue_done" not in self.types
            assert (type == "session.queued") is not any(each in ("session.queued", "session.queue_update") for each in self.types)
        if type in ("session.queue_done", "session.created"):
            assert type not in self.types, "it comes once"
        if type == "session.created":
            assert "session.queue_done" in self.types
        if type.startswith("response.") or type == "session.warning":
            assert "session.created" in self.types
            assert fields["session_id"] == ID
        assert ("server_send_ts" in fields) is ("session.created" in [*self.types, type])
        if type == "response.output.delta":
            self._delta(fields)
        if type == "response.done":
            assert fields["response_id"] not in self.done, "an answer ends once"
            self.done.add(fields["response_id"])
        self.types.append(type)

    def _delta(self, fields):
        assert fields["response_id"] not in self.done, "an answer's deltas come before its end"
        wanted = {"listen": {"text"}, "text": {"text"}, "audio": {"audio"}}[fields["kind"]]
        assert wanted == {"text", "audio"} & set(fields)
        assert (fields["text"] == "") is (fields["kind"] == "listen") if "text" in fields else base64.b64decode(fields["audio"])

    def tells(self, word):
        """The engine got a command."""
        assert not self.is_closed and "session.queue_done" in self.types, "who waits for a place says nothing to it"
        if isinstance(word, commands.StartDuplex):
            assert not self.told
        if isinstance(word, commands.AppendAudio | commands.AppendImage | commands.ForceListen):
            assert isinstance(self.told[0], commands.StartDuplex)
            assert "session.created" in self.types
        self.told.append(word)

    def closes(self, _effect):
        """The session ended."""
        assert not self.is_closed
        self.is_closed = True

    @property
    def asked(self):
        """The ids of the engine's requests."""
        return [word.id for word in self.told if isinstance(word, commands.Respond)]


_dialogues: list[Any] = []


@pytest.fixture(autouse=True)
def all_spoken_of():
    """At the end of a test, all output must have been expected."""
    _dialogues.clear()
    yield
    assert [dialogue.pending for dialogue in _dialogues if dialogue.pending] == []


class Dialogue:
    """
    A session between its client and its engine.

    Attributes:
        pending: output that was not expected yet: events as JSON, commands for the engine, and the end.
        at: the time, which only `wait` advances.
        wakes_at: when the session's timer is due.
    """

    def __init__(self, mode="video", capabilities=ALL, until=None, **opening):
        self.mode = mode
        self.at = BEGUN_AT
        self.pending: list[Any] = []
        self.wakes_at: float | None = None
        self.laws = Laws()
        config = MinicpmoSessionConfig(
            **{"model": "parrot", "capabilities": capabilities, "mode": mode, "session_id": ID, "instructions": "Be kind."} | opening
        )
        self.session = MinicpmoSession(config, numbered())
        _dialogues.append(self)
        self._hear(FromClient(config, self.at))
        self._go_on(until)

    def _go_on(self, until):
        """Bring the session to that point, and skip its output."""
        steps = {"assigned": [ASSIGNED], "live": [ASSIGNED, init(), *([READY] if self.mode != "chat" else [])]}
        for said in steps.get(until, []):
            self >> said
            self.pending.clear()

    def __rshift__(self, said):
        assert self.pending == [], "there is more that came, and was not spoken of"
        if isinstance(said, bytes | dict):
            self._say(said if isinstance(said, bytes) else json.dumps(said).encode())
        elif isinstance(said, ConnectionResumed | ClientThrottled):
            self._hear(FromClient(said, self.at))
        elif isinstance(said, Tick | Hangup | Shutdown):
            self._hear(said)
        else:
            self._hear(FromEngine(said if isinstance(said, tuple) else (said,), self.at))
        return self

    def __lshift__(self, wanted):
        assert self.pending, f"{wanted} did not come, and nothing else did"
        came = self.pending.pop(0)
        shown = event(wanted) if isinstance(wanted, str) else wanted
        assert fits(shown, came), f"expected {wanted}, but there came {came}, and then {self.pending}"
        return self

    def _say(self, frame):
        try:
            said: Any = decode_client(frame, self.mode)
        except ClientError as mistake:
            said = UnreadableMinicpmoEvent(mistake)
        self._hear(FromClient(said, self.at))

    def _hear(self, happened):
        for effect in self.session.handle(happened):
            match effect:
                case Send(sent):
                    fields = json.loads(encode_server(sent))
                    self.laws.sent(fields)
                    self.pending.append(fields)
                case SendToEngine(word):
                    self.laws.tells(word)
                    self.pending.append(word)
                case WakeAt(at):
                    self.wakes_at = at
                case Observe():
                    self.pending.append(effect)
                case Close():
                    self.laws.closes(effect)
                    self.pending.append(effect)

    def wait(self, seconds):
        """Advance the time; timers that are due meanwhile fire."""
        until = self.at + seconds
        while self.wakes_at is not None and self.wakes_at <= until and self.session.end_reason is None:
            self.at, self.wakes_at = max(self.at, self.wakes_at), None
            self._hear(Tick(self.at))
        self.at = until
        return self

    def skip(self):
        """Skip the pending output."""
        self.pending.clear()
        return self
