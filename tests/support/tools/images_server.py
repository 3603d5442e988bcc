"""A server with the Images API, in this process, whose pictures are small and real."""

import base64
import contextlib
import json
import struct
import zlib

from aiohttp import web

USAGE = {
    "input_tokens": 30,
    "output_tokens": 40,
    "total_tokens": 70,
    "input_tokens_details": {"image_tokens": 10, "text_tokens": 20},
    "output_tokens_details": {"image_tokens": 35, "text_tokens": 5},
}


def png(width=4, height=3, shade=128):
    """A grey picture."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (b"\0" + bytes([shade]) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def b64(content):
    return base64.b64encode(content).decode()


def data_url(content, kind="image/png"):
    return f"data:{kind};base64,{b64(content)}"


class ImagesServer:
    """
    The server.

    Attributes:
        requests: what it was asked: path, fields, and files as (field, filename, bytes).
        answer: makes an answer of the request's fields, in place of a picture.
    """

    def __init__(self):
        self.requests = []
        self.keys = []
        self.answer = None
        self.base_url = ""

    async def respond(self, request):
        self.keys.append(request.headers.get("authorization"))
        fields, files = {}, []
        if request.content_type == "application/json":
            fields = await request.json()
        else:
            for name, value in (await request.post()).items():
                if isinstance(value, web.FileField):
                    files.append((name, value.filename, value.file.read()))
                else:
                    fields[name] = value
        self.requests.append((request.path, fields, files))
        if self.answer is not None:
            return await self.answer(request, fields)
        return await picture(request, fields)

    async def file(self, _request):
        return web.Response(body=png(7, 7), content_type="image/png")


async def picture(request, fields):
    kind = "image_edit" if request.path.endswith("edits") else "image_generation"
    about = {"created_at": 1, "background": "opaque", "output_format": "png", "quality": "high", "size": "4x3"}
    if fields.get("stream") not in (True, "true"):
        one = {"b64_json": b64(png()), "revised_prompt": f"better {fields['prompt']}"}
        return web.json_response({"created": 1, "data": [one], "usage": USAGE, **{k: v for k, v in about.items() if k != "created_at"}})
    events = [
        {"type": f"{kind}.partial_image", "b64_json": b64(png(shade=index)), "partial_image_index": index, **about}
        for index in range(int(fields["partial_images"]))
    ]
    return await stream(request, [*events, {"type": f"{kind}.completed", "b64_json": b64(png()), "usage": USAGE, **about}])


async def stream(request, events):
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    await response.write_eof()
    return response


@contextlib.asynccontextmanager
async def images_server():
    server = ImagesServer()
    app = web.Application(client_max_size=64 << 20)
    for path in ("generations", "edits"):
        app.router.add_post(f"/v1/images/{path}", server.respond)
    app.router.add_get("/files/a.png", server.file)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
