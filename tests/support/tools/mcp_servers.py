"""MCP servers on loopback, made with the library `mcp`, each of another transport and age; and some that are broken."""

import asyncio
import json
import socket
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, EmbeddedResource, ImageContent, TextContent, TextResourceContents, ToolAnnotations

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class Notes:
    """What the servers have seen."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.methods: list[str] = []
        self.cancelled = threading.Event()
        self.started = threading.Event()


def make_server(notes: Notes) -> MCPServer:
    server = MCPServer("probe", log_level="CRITICAL")
    counts: dict[int, int] = {}

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers"""
        return a + b

    @server.tool()
    def boom() -> str:
        """Always fails"""
        raise ValueError("kaboom")

    @server.tool()
    async def slow(seconds: float) -> str:
        """Sleeps"""
        notes.started.set()
        try:
            await anyio.sleep(seconds)
        except BaseException:
            notes.cancelled.set()
            raise
        return "slept"

    @server.tool()
    def big(n: int) -> str:
        """Many letters"""
        return "x" * n

    @server.tool()
    def parts() -> CallToolResult:
        """Several kinds of content"""
        resource = TextResourceContents(uri="file:///a.txt", text="inside", mime_type="text/plain")
        return CallToolResult(
            content=[
                TextContent(type="text", text="one"),
                ImageContent(type="image", data="AAAA", mime_type="image/png"),
                EmbeddedResource(type="resource", resource=resource),
                TextContent(type="text", text="two"),
            ]
        )

    @server.tool(name="files/read it")
    def read_file(path: str) -> str:
        """A name that models can't have"""
        return f"content of {path}"

    @server.tool()
    def count(ctx: Context) -> int:
        """How often this session has asked"""
        key = id(ctx.session)
        counts[key] = counts.get(key, 0) + 1
        return counts[key]

    return server


def without_discover(app: App, notes: Notes) -> App:
    """The app as one of 2025 is, which does not know `server/discover`."""

    async def call(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await app(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        content = json.loads(body) if body else {}
        if content.get("method") == "server/discover":
            error = {"jsonrpc": "2.0", "id": content["id"], "error": {"code": -32601, "message": "Method not found"}}
            return await reply(send, 400, json.dumps(error).encode(), "application/json")
        is_sent = False

        async def receive_again() -> dict[str, Any]:
            nonlocal is_sent
            if is_sent:
                return dict(await receive())
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await app(scope, receive_again, send)

    return call


def watched(app: App, notes: Notes) -> App:
    """The app, whose requests are noted."""

    async def call(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            notes.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
            notes.methods.append(scope["method"])
        await app(scope, receive, send)

    return call


async def reply(send: Any, status: int, body: bytes, kind: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
    fields = [(b"content-type", kind.encode()), *((name.encode(), value.encode()) for name, value in headers)]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def read_json(receive: Any) -> dict[str, Any]:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return dict(json.loads(body)) if body else {}


class BrokenServer:
    """Answers as its paths say; the tools of `/late…` can be listed, and calls fail."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[tuple[str, str]] = []
        self.other_origin = ""
        self.last_headers: dict[str, str] = {}
        self.raw_bodies: list[bytes] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path, request = scope["path"], await read_json(receive)
        self.seen.append((path, request.get("method", scope["method"])))
        if "method" not in request and "id" in request:  # an answer to a question
            await reply(send, 202, b"", "application/json")
        elif path.endswith(("/longlist", "/tornlist")) and request.get("method") == "tools/list":
            await self._break(path.rpartition("/")[2], request, receive, send)
        elif path.startswith("/late/") and request.get("method") != "tools/call":
            await self._serve(request, send)
        else:
            self.last_headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            await self._break(path.rpartition("/")[2], request, receive, send)

    async def _serve(self, request: dict[str, Any], send: Any) -> None:
        tool = {"name": "add", "inputSchema": {"type": "object"}}
        version = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "b", "version": "1"}}
        results: dict[str, Any] = {"initialize": version, "tools/list": {"tools": [tool]}}
        method = request.get("method")
        if method in results:
            await self._result(request, results[method], send)
        elif "id" in request:
            error = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}}
            await reply(send, 200, json.dumps(error).encode(), "application/json")
        else:
            await reply(send, 202, b"", "application/json")

    async def _result(self, request: dict[str, Any], result: Any, send: Any) -> None:
        await reply(send, 200, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode(), "application/json")

    async def _drip(self, send: Any) -> None:
        await _start(send, "application/json")
        for _ in range(200):
            await _send_part(send, b" ")
            await asyncio.sleep(0.05)

    async def _ask_back(self, send: Any) -> None:
        await _start(send, "text/event-stream")
        for n in range(3000):
            question = {"jsonrpc": "2.0", "id": n, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
            await _send_part(send, b"data: " + json.dumps(question).encode() + b"\n\n")
            await asyncio.sleep(0.02)  # until it is left

    async def _break(self, kind: str, request: dict[str, Any], receive: Any, send: Any) -> None:
        if kind.isdigit():
            await reply(send, int(kind), b"", "text/plain")
        elif kind in ("raw", "rawstream"):
            body = self.raw_bodies.pop(0).replace(b'"id": "?"', f'"id": {request["id"]}'.encode())
            await reply(send, 200, body, "application/json" if kind == "raw" else "text/event-stream")
        elif kind == "hang":
            await receive()
        elif kind == "loris":
            await self._drip(send)
        elif kind == "cut":
            await _start(send, "application/json", (b"content-length", b"100"))
            await _send_part(send, b"{")
            raise ConnectionResetError
        elif kind == "asker":
            await self._ask_back(send)
        elif kind in ("huge", "hugestream"):
            await _start(send, "application/json" if kind == "huge" else "text/event-stream")
            await _send_part(send, b"" if kind == "huge" else b"data: ")
            for _ in range(400):
                await _send_part(send, b" " * 262144)
        else:
            await self._answer_wrongly(kind, request, send)

    async def _answer_wrongly(self, kind: str, request: dict[str, Any], send: Any) -> None:
        echo = [{"type": "text", "text": json.dumps(self.last_headers)}]
        results: dict[str, Any] = {
            "crowd": {"content": [{"type": "text", "text": ""}] * 11_000},
            "nonsense": {"content": 5},
            "longlist": {"tools": [{"name": "x" * 2_000_000, "inputSchema": {"type": "object"}}]},
            "echo": {"content": echo},
            "echoerror": {"content": echo, "isError": True},
        }
        codes = {"error": -32042, "bigcode": 10**30}
        if kind == "html":
            await reply(send, 200, b"<p>hi", "text/html")
        elif kind == "moved":
            await reply(send, 307, b"", "text/plain", (("location", f"{self.other_origin}/mcp"),))
        elif kind == "packed":
            await reply(send, 200, b"\x1f\x8b", "application/json", (("content-encoding", "gzip"),))
        elif kind in ("torn", "tornlist"):  # a text that was cut in the middle of an emoji, as JavaScript writes it
            await reply(send, 200, b'{"jsonrpc": "2.0", "id": 1, "result": "\\ud83d"}', "application/json")
        elif kind in results:
            await self._result(request, results[kind], send)
        elif kind in codes:
            error = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": codes[kind], "message": "not today"}}
            await reply(send, 200, json.dumps(error).encode(), "application/json")


async def _start(send: Any, kind: str, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode()), *headers]})


async def _send_part(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


class Servers:
    """The servers' URLs, and what they have seen."""

    def __init__(self) -> None:
        self.notes = Notes()
        self.broken = BrokenServer()
        self.url_by_kind: dict[str, str] = {}


@contextmanager
def running_servers() -> Iterator[Servers]:
    """All servers, in a thread."""
    servers = Servers()
    notes = servers.notes
    apps: dict[str, App] = {
        "streamable-2026": make_server(notes).streamable_http_app(),
        "streamable-2025": without_discover(make_server(notes).streamable_http_app(), notes),
        "stateless-json": without_discover(make_server(notes).streamable_http_app(stateless_http=True, json_response=True), notes),
        "sse": make_server(notes).sse_app(),
        "sse-elsewhere": make_server(notes).sse_app(sse_path="/mcp"),
        "broken": servers.broken,
    }
    running = []
    for kind, app in apps.items():
        # Accepted sockets have the listener's protocol, and asyncio sets TCP_NODELAY for those of TCP alone.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # who comes before its server accepts waits, and is not refused
        port = listener.getsockname()[1]
        path = {"sse": "/sse", "broken": ""}.get(kind, "/mcp")
        servers.url_by_kind[kind] = f"http://127.0.0.1:{port}{path}"
        lifespan = "off" if kind == "broken" else "on"
        config = uvicorn.Config(
            app if kind == "broken" else watched(app, notes), log_config=None, lifespan=lifespan, timeout_graceful_shutdown=1
        )
        running.append((uvicorn.Server(config), listener))
    servers.broken.url = servers.url_by_kind["broken"]
    servers.broken.other_origin = servers.url_by_kind["streamable-2026"].removesuffix("/mcp")

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            for server, listener in running:
                group.create_task(server.serve(sockets=[listener]))

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield servers
    finally:
        for server, _ in running:
            server.should_exit = True
        thread.join(20)
        for _, listener in running:
            listener.close()


STDIO_SERVER = textwrap.dedent(
    """
    import os
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("child")

    @server.tool()
    def pid() -> int:
        return os.getpid()

    @server.tool()
    def variable(name: str) -> str:
        return os.environ.get(name, "nothing")

    print("no message", flush=True)
    server.run()
    """
)
STDIO_COMMAND = (sys.executable, "-c", STDIO_SERVER)


QUICK_SERVER = textwrap.dedent(
    """
    import json, os, sys

    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("pid", "big", "die")]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "q", "version": "1"}}
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        answer = {"jsonrpc": "2.0", "id": request["id"]}
        match request["method"]:
            case "initialize":
                answer["result"] = hello
            case "tools/list":
                answer["result"] = {"tools": tools}
            case "tools/call" if request["params"]["name"] == "die":
                os._exit(3)
            case "tools/call":
                text = str(os.getpid()) if request["params"]["name"] == "pid" else "x" * 3_000_000
                answer["result"] = {"content": [{"type": "text", "text": text}]}
            case _:
                answer["error"] = {"code": -32601, "message": "no"}
        print(json.dumps(answer), flush=True)
    """
)
QUICK_COMMAND = (sys.executable, "-S", "-c", QUICK_SERVER)
"""A program without the library, which starts at once."""
