"""
MiniCPM-o workers on real sockets, whose behaviour and faults a test chooses, and an engine in front of them.

They follow what is known of the protocol, without a model: loud audio gets an answer, silence a `listen`. They were never compared with a
worker that has the real weights.
"""

import array
import asyncio
import base64
import contextlib
import json
from pathlib import Path

from aiohttp import WSMsgType, web

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.omni.engine import build

LIMIT = 128 << 20


def floats_of(text):
    return array.array("f", base64.b64decode(text))


def sound_of(count, level=0.25):
    return base64.b64encode(array.array("f", [level] * count).tobytes()).decode()


def loud(ms=1000, rate_hz=16_000):
    """Audio of a client's voice."""
    return b"\0\x20" * (rate_hz * ms // 1000)


def quiet(ms=1000, rate_hz=16_000):
    return b"\0\0" * (rate_hz * ms // 1000)


class Worker:
    """
    The base of all workers; by itself, the model's own server in Python.

    Attributes:
        inits: the payloads of all sessions; `asked` has all inputs.
        closings: the ids of sessions that a client asked to close, and how.
        recovers_s: how long it takes to be idle again after a session.
        creates_s: how long a session takes to begin.
        refused: how many clients were refused.
        breaches: violations of the protocol.
        faults: what to do instead of answering, by the number of the append, from 1.
    """

    path = "/backend"
    health_name = "active_session_id"
    reads_on = False  # while it answers

    def __init__(self, recovers_s=0.0, creates_s=0.0, faults=None, on_init=None, usage=False):
        self.recovers_s = recovers_s
        self.creates_s = creates_s
        self.faults = faults or {}
        self.on_init = on_init
        self.usage = usage
        self.status = None
        self.inits, self.asked, self.closings, self.breaches = [], [], [], []
        self.refused = self.sessions = self.appends = 0
        self.changed = asyncio.Event()
        self.socket = None
        self.is_busy = False
        self.headers = []

    @contextlib.asynccontextmanager
    async def open(self, port=0):
        app = web.Application(client_max_size=LIMIT)
        app.router.add_get("/health", self.health)
        app.router.add_post("/sessions/{id}/close", self.close)
        for path in ("/backend", "/v1/worker/chat", "/v1/worker/duplex"):
            app.router.add_get(path, self.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.address = f"ws://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    # HTTP

    async def health(self, request):
        self.headers.append(request.headers)
        return web.json_response(self.health_body())

    def health_body(self):
        status = self.status or ("busy_chat" if self.is_busy else "idle")
        return {
            "status": "loading" if status == "loading" else "ready",
            "backend": "pytorch",
            "worker_status": status,
            self.health_name: self.id if self.is_busy else None,
        }

    async def close(self, request):
        self.closings.append(("post", request.match_info["id"]))
        self.changed.set()
        if request.match_info["id"] != self.id or self.socket is None:
            return web.json_response({"detail": "unknown session"}, status=404)
        await self.socket.close()
        return web.json_response({"ok": True, "session_id": self.id, "closed": True})

    # A session

    async def serve(self, request):
        if self.is_busy or not request.path.startswith(self.path):
            self.refused += 1
            raise web.HTTPForbidden()
        self.is_busy = True
        socket = self.socket = web.WebSocketResponse(max_msg_size=LIMIT)
        self.id = f"sess_{self.sessions:012x}"
        self.sessions += 1
        self.response = 0
        self.cumulative = {"total_tokens": 7, "input_tokens": 7, "output_tokens": 0}
        await socket.prepare(request)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self.converse(socket, tasks)
        except* ConnectionError:
            pass
        finally:
            self.socket = None
            self.changed.set()
            await asyncio.sleep(self.recovers_s)
            self.is_busy = False
            self.changed.set()
        return socket

    async def converse(self, socket, tasks):
        self.mode = None
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                continue
            event = json.loads(message.data)
            self.changed.set()
            if event["type"] == "session.init" and self.mode is None:
                await self.init(event["payload"])
            elif event["type"] == "input.append" and self.mode:
                self.appends += 1
                self.asked.append(event["input"])
                if self.reads_on:
                    tasks.create_task(self.answer(event["input"]))
                else:
                    await self.answer(event["input"])
            else:
                await self.other(event)
            if socket.closed:
                return

    async def init(self, payload):
        self.inits.append(payload)
        self.mode, self.voiced = payload["mode"], payload["use_tts"]
        self.is_speaking = False
        self.changed.set()
        if self.on_init is not None:
            await self.on_init(self)
            return
        await asyncio.sleep(self.creates_s)
        more = {"usage": self.cumulative} if self.usage else {}
        await self.send("session.created", session_id=self.id, mode=self.mode, metrics={"kv_cache_length": 40}, **more)

    async def other(self, event):
        self.breaches.append(event["type"])
        await self.fail("unexpected_message_type", "the client did what may not be done")

    async def fail(self, reason, diagnostic, code=1011):
        await self.send("session.closed", session_id=self.id, reason=reason, diagnostic={"message": diagnostic})
        await self.socket.close(code=code)

    async def send(self, type, **fields):
        if self.socket is not None:
            await self.socket.send_json({"type": type, **fields, "server_send_ts": 1.5})

    async def delta(self, kind, **fields):
        await self.send(
            "response.output.delta",
            kind=kind,
            session_id=self.id,
            response_id=f"resp_{self.response:012x}",
            metrics={"kv_cache_length": 100 + self.appends, "wall_clock_ms": 400},
            **fields,
        )

    async def answer(self, input):
        fault = self.faults.get(self.appends)
        if fault is not None:
            await fault(self)
        elif self.mode == "turn_based":
            await self.answer_question(input)
        else:
            await self.hear(floats_of(input["audio"]), force_listen=input.get("force_listen", False))

    def count(self):
        if not self.usage:
            return {}
        self.cumulative = {
            "total_tokens": self.cumulative["total_tokens"] + 15,
            "input_tokens": self.cumulative["input_tokens"] + 10,
            "output_tokens": self.cumulative["output_tokens"] + 5,
            "output_token_details": {"text_tokens": 2, "audio_tokens": 3},
        }
        return {"usage": self.cumulative}

    async def hear(self, sound, force_listen):
        if force_listen or max(map(abs, sound)) < 0.01:
            await self.delta("listen", **self.count())
            if self.is_speaking:
                self.is_speaking = False
                self.response += 1
            return
        self.is_speaking = True
        await self.delta("text", text="word ", **self.count())
        if self.voiced:
            await self.delta("audio", audio=sound_of(24_000))

    async def answer_question(self, input):
        last = input["messages"][-1]["content"]
        words = " ".join(part.get("text", f"<{part['type']}>") for part in last) if isinstance(last, list) else last
        most = input.get("generation", {}).get("max_new_tokens", 256)
        said = ["You", *f"said: {words}".split(" ")] if "Count" not in words else [str(number) for number in range(most)]
        said = said[:most]
        for word in said:
            if self.socket is None or self.socket.closed:
                return
            await self.delta("text", text=word + " ")
            if input.get("tts", {}).get("enabled"):
                await self.delta("audio", audio=sound_of(2_400))
            if len(said) > 20:
                await asyncio.sleep(0.002)
        await self.send(
            "response.done",
            session_id=self.id,
            response_id=f"resp_{self.response:012x}",
            text=" ".join(said),
            audio=None,
            reason="turn_end",
            metrics={"kv_cache_length": 50 + len(said), "n_tokens": len(said)},
        )
        self.response += 1


class GatewayWorker(Worker):
    """The gateway's worker in front of the model's server."""

    path = "/v1/worker/"
    health_name = "current_session_id"
    reads_on = True

    def health_body(self):
        return {**super().health_body(), "status": "healthy", "gpu_id": 0, "model_loaded": True, "kv_cache_length": 0}

    async def other(self, event):
        if event["type"] != "session.close":
            await super().other(event)
            return
        self.closings.append(("frame", self.id))
        await self.send("session.closed", session_id=self.id, reason=event.get("reason", "user_stop"))
        await self.socket.close()


class Native(Worker):
    """
    `llama-omni-server`: it doesn't report its state, ends each step of speech with `response.done`, closes without an event, looks at one
    image only, and synthesizes speech in parallel to the text, so that some audio comes late.
    """

    def health_body(self):
        return {"status": "ok", "engine": "comni"}

    async def fail(self, reason, diagnostic, code=1000):
        await super().fail(reason, diagnostic, code)

    async def close(self, request):
        return web.json_response({"error": {"message": "not found", "type": "not_found"}}, status=404)

    async def serve(self, request):
        if self.is_busy:  # accepted, and closed at the first message without an event
            self.refused += 1
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive()
            await socket.close()
            return socket
        return await super().serve(request)

    async def hear(self, sound, force_listen):
        if force_listen or max(map(abs, sound)) < 0.01:
            was_speaking, self.is_speaking = self.is_speaking, False
            await self.delta("listen")
            if was_speaking and self.voiced:
                await self.delta("audio", audio=sound_of(1_200))
            self.response += was_speaking
            return
        self.is_speaking = True
        await self.delta("text", text="word ")
        if self.voiced:
            await self.delta("audio", audio=sound_of(24_000))
        await self.send(
            "response.done", session_id=self.id, response_id=f"resp_{self.response:012x}", text="word ", reason="turn_end", metrics={}
        )


# The engine in front of them


class EventLog:
    """The events of an engine, in order."""

    def __init__(self):
        self.words = []
        self._changed = asyncio.Event()

    def __call__(self, words):
        assert words
        self.words += words
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def of(self, *kinds):
        return [word for word in self.words if isinstance(word, kinds)]

    def ends(self, id):
        return [word for word in self.of(events.ResponseEnded, events.ResponseFailed) if word.id == id]

    async def end_of(self, id):
        await self.until(lambda: self.ends(id))
        (end,) = self.ends(id)
        return end

    async def some(self, *kinds, count=1):
        """The events of a type, once there are enough of them."""
        await self.until(lambda: len(self.of(*kinds)) >= count)
        return self.of(*kinds)

    def kinds(self):
        return [type(word).__name__ for word in self.words if not isinstance(word, events.EngineMetrics)]


class Client:
    """A session that only sends commands and collects events."""

    def __init__(self, log, conversation):
        self.log = log
        self.conversation = conversation

    def tell(self, *words):
        for word in words:
            self.conversation.send(word)


NOTICES = []


def engine(*workers, notice=NOTICES.append, secrets=None, **options):
    place = BuildContext(weights_folder=Path(), base_folder=Path(), notice=notice, secrets=secrets or {})
    return build("minicpm-o", {"workers": [worker.address for worker in workers], **options}, place)


@contextlib.asynccontextmanager
async def conversing(omni, kind="video"):
    log = EventLog()
    async with omni.open(ConversationSettings(model="minicpm-o", kind=kind), log) as conversation:
        yield Client(log, conversation)


@contextlib.asynccontextmanager
async def facing(worker, kind="video", **options):
    """A conversation with a worker."""
    async with worker.open():
        omni = engine(worker, **options)
        try:
            async with conversing(omni, kind) as client:
                yield client
        finally:
            await omni.stop()


def ask(id="resp_1", text="Hi", *parts, **more):
    return commands.Respond(id=id, history=(history.Message("user", (*parts, history.TextPart(text))),), **more)


def played(scenario):
    async def play():
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(play())
