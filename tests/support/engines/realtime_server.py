"""A Realtime server on a real socket, in either dialect, whose behaviour and faults a test chooses, and an engine in front of it."""

import asyncio
import base64
import contextlib
import itertools
import json
from pathlib import Path

from aiohttp import WSMsgType, web

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings, Transcription, TurnDetection
from antiphon.engines.realtime.engine import build
from support.engines.upstreams import Heard, run

BETA_NAMES = {
    "response.output_text": "response.text",
    "response.output_audio": "response.audio",
    "response.output_audio_transcript": "response.audio_transcript",
}
BYTES_A_MS = 48
WORD_MS = 100


LISTEN = commands.Configure(turn_detection=TurnDetection(silence_duration_ms=200), transcription=Transcription("whisper-1"))
BY_HAND = commands.Configure(transcription=Transcription())


def sound(ms):
    """Audio of a client, at 24 kHz."""
    return b"\x05\x06" * (ms * BYTES_A_MS // 2)


def of(heard, *kinds):
    return [word for word in heard.words if isinstance(word, kinds)]


def voice_of(words):
    """Audio of a number of words, at 24 kHz."""
    return b"\x01\x02" * (WORD_MS * BYTES_A_MS // 2 * words)


class Session:
    """
    One connection: a conversation as the original server has it.

    Attributes:
        asked: all client events, except appends.
        items: those of the conversation, in order.
        heard: the input audio.
        update: all settings, by the last `session.update` that changed them.
    """

    def __init__(self, server, socket, request):
        self.server, self.socket, self.request = server, socket, request
        self.asked, self.items, self.update = [], [], {}
        self.heard = b""
        self.buffered = 0
        self.numbers = itertools.count(1)
        self.active = None
        self.speaking = None
        self.turns = list(server.turns)

    async def send(self, type, **fields):
        if self.server.dialect == "beta":
            stem, dot, end = type.rpartition(".")
            type = BETA_NAMES.get(stem, stem) + dot + end
            if type == "conversation.item.done":
                return
            type = {"conversation.item.added": "conversation.item.created"}.get(type, type)
        await self.socket.send_json({"type": type, "event_id": f"sev_{next(self.numbers)}", **fields})

    async def error(self, code, message, event_id=None, type="invalid_request_error"):
        await self.send("error", error={"type": type, "code": code, "message": message, "param": None, "event_id": event_id})

    async def serve(self):
        await self.server.greeting(self)
        async for message in self.socket:
            if message.type is WSMsgType.TEXT:
                event = json.loads(message.data)
                if event["type"] != "input_audio_buffer.append":
                    self.asked.append(event)
                self.server.changed.set()
                await getattr(self, "on_" + event["type"].replace(".", "_"))(event)

    def kinds(self):
        return [event["type"] for event in self.asked]

    def texts(self):
        """The conversation in a readable form: each item in a word or two."""
        return [item if isinstance(item, str) else _text(item) for item in self.items]

    # Client events

    async def on_session_update(self, event):
        self.update |= event["session"] | event["session"].get("audio", {}).get("input", {})
        await self.send("session.updated", session={"type": "realtime", **event["session"]})

    async def on_input_audio_buffer_append(self, event):
        sound = base64.b64decode(event["audio"], validate=True)
        self.heard += sound
        self.buffered += len(sound)
        now_ms = len(self.heard) // BYTES_A_MS
        while self.turns and self.update.get("turn_detection"):  # null: manual turns
            start_ms, stop_ms = self.turns[0]
            if now_ms >= start_ms and self.speaking is None:
                self.speaking = f"item_u{next(self.numbers)}"
                await self.send("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self.speaking)
            if now_ms < stop_ms:
                break
            self.turns.pop(0)
            item_id, self.speaking = self.speaking, None
            await self.send("input_audio_buffer.speech_stopped", audio_end_ms=stop_ms, item_id=item_id)
            await self.commit(item_id)

    async def on_input_audio_buffer_commit(self, event):
        if not self.buffered:
            await self.error("input_audio_buffer_commit_empty", "buffer too small", event.get("event_id"))
            return
        item_id, self.speaking = self.speaking, None
        await self.commit(item_id or f"item_u{next(self.numbers)}")

    async def on_input_audio_buffer_clear(self, _event):
        self.buffered, self.speaking = 0, None
        await self.send("input_audio_buffer.cleared")

    async def on_conversation_item_create(self, event):
        item, behind = event["item"], event.get("previous_item_id")
        ids = [known["id"] for known in self.items]
        if refusal := self.server.refuses(item):
            await self.error(*refusal, event.get("event_id"))
            return
        assert behind in (None, "root", *ids), (behind, ids)
        self.items.insert(len(ids) if behind is None else 0 if behind == "root" else ids.index(behind) + 1, item)
        await self.send("conversation.item.added", previous_item_id=None, item=item)
        await self.send("conversation.item.done", previous_item_id=None, item=item)

    async def on_conversation_item_delete(self, event):
        known = [item["id"] for item in self.items]
        assert event["item_id"] in known, (event, known)
        del self.items[known.index(event["item_id"])]
        await self.send("conversation.item.deleted", item_id=event["item_id"])

    async def on_conversation_item_truncate(self, event):
        (item,) = (item for item in self.items if item["id"] == event["item_id"])
        item["cut_ms"] = event["audio_end_ms"]
        await self.send("conversation.item.truncated", item_id=item["id"], content_index=0, audio_end_ms=event["audio_end_ms"])

    async def on_response_create(self, event):
        asked = event["response"]
        is_aside = asked.get("conversation") == "none"
        if self.active is not None and not is_aside:
            await self.error("conversation_already_has_active_response", "Already answering.", event["event_id"])
            return
        answer = Answer(self, event)
        if not is_aside:
            self.active = answer
        self.server.answering.append(answer)
        self.server.playing.create_task(self.server.play(answer))

    async def on_response_cancel(self, event):
        answers = [answer for answer in self.server.answering if event.get("response_id") in (answer.id, None) and not answer.is_over]
        if not answers:
            await self.error("response_cancel_not_active", "Cancellation failed: no active response found", event.get("event_id"))
        for answer in answers:
            if self.server.heeds_cancel:
                await answer.done("cancelled", reason="client_cancelled")

    # Server events

    async def commit(self, item_id):
        self.buffered = 0
        item = {"id": item_id, "type": "message", "role": "user", "content": [{"type": "input_audio", "transcript": None}]}
        self.items.append(item)
        await self.send("input_audio_buffer.committed", previous_item_id=None, item_id=item_id)
        await self.send("conversation.item.added", previous_item_id=None, item=item)
        if self.update.get("transcription", self.update.get("input_audio_transcription")) is not None:
            await self.server.transcribe(self, item_id)


class Answer:
    """A response, as a play describes it."""

    def __init__(self, session, event):
        self.session, self.asked, self.event_id = session, event["response"], event["event_id"]
        self.id = f"resp_{next(session.numbers)}"
        self.item_id = f"item_a{next(session.numbers)}"
        self.is_over = False
        self.has_message = False
        self.go = asyncio.Event()

    @property
    def is_aloud(self):
        return "audio" in (self.asked.get("output_modalities") or self.asked["modalities"])

    def response(self, status, **more):
        aside = self.asked.get("conversation") == "none"
        told = {"id": self.id, "object": "realtime.response", "status": status, "status_details": None, "output": []}
        return told | {"conversation_id": None if aside else "conv_1", "metadata": self.asked.get("metadata"), "usage": None} | more

    async def send(self, type, **fields):
        await self.session.send(type, response_id=self.id, output_index=0, **fields)

    async def created(self):
        await self.session.send("response.created", response=self.response("in_progress"))

    async def message(self):
        item = {"id": self.item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        await self.send("response.output_item.added", item=item)
        await self.added(item)

    async def added(self, item):
        if self.asked.get("conversation") != "none":
            self.session.items.append(item)
            await self.session.send("conversation.item.added", previous_item_id=None, item=item)

    async def say(self, *words):
        if not self.has_message:
            self.has_message = True
            await self.message()
        for word in words:
            kind = "response.output_audio_transcript.delta" if self.is_aloud else "response.output_text.delta"
            await self.send(kind, item_id=self.item_id, content_index=0, delta=word)
            if self.is_aloud:
                sound = base64.b64encode(voice_of(1)).decode()
                await self.send("response.output_audio.delta", item_id=self.item_id, content_index=0, delta=sound)

    async def call(self, name, arguments, call_id="call_1"):
        item_id = f"item_c{next(self.session.numbers)}"
        item = {"id": item_id, "type": "function_call", "name": name, "call_id": call_id, "arguments": "", "status": "in_progress"}
        await self.send("response.output_item.added", item=item)
        await self.added(item)
        for piece in arguments:
            await self.send("response.function_call_arguments.delta", item_id=item_id, call_id=call_id, delta=piece)
        whole = "".join(arguments)
        name_of_done = {} if self.session.server.dialect == "beta" else {"name": name}
        await self.send("response.function_call_arguments.done", item_id=item_id, call_id=call_id, arguments=whole, **name_of_done)
        await self.send("response.output_item.done", item=item | {"arguments": whole, "status": "completed"})

    async def done(self, status="completed", *, reason=None, error=None, usage=None):
        if self.is_over:
            return
        self.is_over = True
        if self.session.active is self:
            self.session.active = None
        details = None if status == "completed" else {"type": status, "reason": reason, "error": error}
        usage = usage or {"total_tokens": 12, "input_tokens": 9, "output_tokens": 3}
        await self.session.send("response.done", response=self.response(status, status_details=details, usage=usage))


async def greeted(session):
    """The events at the start of a session."""
    await session.send("session.created", session={"type": "realtime", "id": "sess_1", "object": "realtime.session"})


async def hello(answer):
    """The default answer."""
    await answer.created()
    await answer.say("Hello", " there.")
    await answer.done()


async def as_said(session, item_id):
    """The default transcript."""
    place = {"item_id": item_id, "content_index": 0}
    await session.send("conversation.item.input_audio_transcription.delta", delta="good ", **place)
    usage = {"type": "tokens", "total_tokens": 7, "input_tokens": 5, "output_tokens": 2, "input_token_details": {"audio_tokens": 4}}
    await session.send("conversation.item.input_audio_transcription.completed", transcript="good day", usage=usage, **place)


class RealtimeServer:
    """
    A server.

    Attributes:
        sessions: one for each connection.
        answering: all requested responses.
        turns: for each session, when its audio has speech.
    """

    def __init__(self, play=hello, *, dialect="ga", greeting=greeted, turns=(), transcribe=as_said, refuses=lambda _item: None, tls=None):
        self.play, self.dialect, self.greeting, self.turns = play, dialect, greeting, turns
        self.transcribe, self.refuses = transcribe, refuses
        self.heeds_cancel = True
        self.tls = tls
        self.sessions, self.answering = [], []
        self.changed = asyncio.Event()

    @property
    def session(self):
        return self.sessions[-1]

    @contextlib.asynccontextmanager
    async def open(self):
        app = web.Application()
        app.router.add_get("/v1/realtime", self._serve)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            async with asyncio.TaskGroup() as self.playing:
                yield self
                for answer in self.answering:
                    answer.go.set()
        finally:
            await runner.cleanup()

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def cut(self):
        """Break the newest connection."""
        self.session.request.transport.abort()

    async def _serve(self, request):
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        session = Session(self, socket, request)
        self.sessions.append(session)
        self.changed.set()
        with contextlib.suppress(ConnectionError):
            await session.serve()
        self.changed.set()
        return socket

    async def _models(self, _request):
        return web.json_response({"object": "list", "data": [{"id": "gpt-realtime", "object": "model"}]})


def _text(item):
    match item["type"]:
        case "function_call":
            return f"call {item['name']}"
        case "function_call_output":
            return f"result {item['output']}"
        case _:
            parts = [part.get("text") or part["type"] for part in item["content"]]
            return f"{item['role']}: {' '.join(parts)}" + (f" cut at {item['cut_ms']}" if "cut_ms" in item else "")


def engine_before(server, place=None, **options):
    address = {"base_url": f"{'wss' if server.tls else 'ws'}://127.0.0.1:{server.port}/v1", "dialect": server.dialect, "retries": 0}
    return build("m", address | options, place or BuildContext(weights_folder=Path(), base_folder=Path()))


@contextlib.asynccontextmanager
async def talking(server, place=None, **options):
    """A conversation with an engine in front of the server; yields it and its events."""
    engine = engine_before(server, place, **options)
    await engine.start()
    heard = Heard()
    try:
        async with engine.open(ConversationSettings(model="gpt-realtime"), heard) as conversation:
            yield conversation, heard
    finally:
        await engine.stop()


def playing(scenario, *args, place=None, options=None, **behaviour):
    """The result of `scenario(conversation, heard, server)`, which may leave nothing behind."""

    async def play():
        async with (
            asyncio.timeout(20),
            RealtimeServer(*args, **behaviour).open() as server,
            talking(server, place, **(options or {})) as (conversation, heard),
        ):
            return await scenario(conversation, heard, server)

    return run(play())


def said(text):
    return engine_history.Message("user", (engine_history.TextPart(text),))


def answered(text, played_ms=None):
    return engine_history.Message("assistant", (engine_history.TextPart(text),), played_ms=played_ms)


def spoken(turn_id, pcm=b"\1\2" * 2400, transcript=None):
    return engine_history.Message("user", (engine_history.SpeechPart(pcm, 24_000, turn_id, transcript),))


def ask(id, *history, **more):
    return commands.Respond(id=id, history=history or (said("Hi"),), **more)
