"""
The least that a WebSocket server in Python can do with picows: read frames, and send the small ones back, which are the questions among
those of `realtime_sessions.py`; or answer each with so many bytes.

    python bench/references/picows_echo.py PORT [BYTES]
"""

import sys

import uvloop
from picows import WSListener, WSMsgType, ws_create_server

ANSWER = b"x" * int(sys.argv[2]) if len(sys.argv) > 2 else b""


class Echo(WSListener):
    """One connection."""

    def on_ws_frame(self, transport, frame):
        if frame.msg_type == WSMsgType.TEXT:
            text = frame.get_payload_as_bytes()
            if ANSWER or len(text) < 200:
                transport.send(WSMsgType.TEXT, ANSWER or text)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()


async def main():
    server = await ws_create_server(lambda _request: Echo(), "127.0.0.1", int(sys.argv[1]), backlog=2048)
    await server.serve_forever()


uvloop.run(main())
