"""
What the server's tools ask, in one program on loopback: an MCP server made with the library `mcp`, over streamable HTTP and over SSE; a
SearXNG that knows one page; and an Images API that draws two squares.

    python conformance/servers/peers.py

It prints its port, and runs until it is stopped.
"""

import asyncio
import base64
import json
import socket
import struct
import zlib

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

PAGE = {"url": "https://birds.example/owls.html", "title": "Owls", "content": "The barn owl hears a mouse under the snow."}

almanac = MCPServer("almanac", log_level="CRITICAL")


@almanac.tool(annotations=ToolAnnotations(read_only_hint=True))
def get_forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    return f"rain in {city} tomorrow"


@almanac.tool()
def book_table(city: str) -> str:
    """Book a table in a city."""
    return f"a table in {city} is booked"


@almanac.tool()
def cancel_table(city: str) -> str:
    """Cancel a table, which always fails."""
    raise ValueError(f"no table in {city}")


def square(shade: int) -> str:
    """A grey PNG of 4 by 4 pixels, in base64."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([shade]) * 4) * 4
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


async def search(request: Request) -> JSONResponse:
    """SearXNG's answer, which has the page whatever is searched."""
    return JSONResponse({"query": request.query_params["q"], "results": [PAGE]})


async def images(request: Request) -> JSONResponse | StreamingResponse:
    """The Images API: a dark square; a light one where pictures are changed; whole, or streamed with earlier stages."""
    is_edit = request.url.path.endswith("edits")
    fields = dict(await request.form()) if is_edit else await request.json()
    about = {"background": "opaque", "output_format": "png", "quality": "low", "size": "4x4"}
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_tokens_details": {"image_tokens": 1, "text_tokens": 2}}
    picture = square(192 if is_edit else 64)
    if fields.get("stream") not in (True, "true"):
        return JSONResponse({"created": 1, "data": [{"b64_json": picture}], "usage": usage, **about})
    kind = "image_edit" if is_edit else "image_generation"
    stages = [
        {"type": f"{kind}.partial_image", "partial_image_index": index, "b64_json": square(index), "created_at": 1, **about}
        for index in range(int(fields["partial_images"]))
    ]
    events = [*stages, {"type": f"{kind}.completed", "b64_json": picture, "usage": usage, "created_at": 1, **about}]
    lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return StreamingResponse(lines, media_type="text/event-stream")


async def serve() -> None:
    """Print the port, and serve until a signal."""
    streamable, sse = almanac.streamable_http_app(), almanac.sse_app()
    # The session manager of streamable HTTP runs in the lifespan of its app.
    others = [
        Route("/search", search),
        *(Route(f"/v1/images/{path}", images, methods=["POST"]) for path in ("generations", "edits")),
    ]
    app = Starlette(routes=[*streamable.routes, *sse.routes, *others], lifespan=lambda _: streamable.router.lifespan_context(streamable))
    # Accepted sockets have the listener's protocol, and asyncio sets TCP_NODELAY for those of TCP alone.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        await uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve())
