"""Opening a WebSocket so that whoever gives it up on the way leaves no connection behind: the library takes back no handshake."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Mapping

from picows import WSListener, WSParsedURL, ws_connect


async def connect_websocket(
    listener: WSListener,
    url: str,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None,
    *,
    timeout_s: float,
    message_limit_bytes: int,
    log: logging.Logger,
) -> None:
    """
    Open a WebSocket for `listener`.

    Args:
        patience_s: how long connecting and the handshake may take together.

    Raises:
        TimeoutError: they took longer.
        picows.WSError: the server did not answer as it should.
        OSError: it can't be reached, or can't be trusted.
    """
    sockets: list[socket.socket] = []

    async def connected(where: WSParsedURL) -> socket.socket:
        sockets.append(await _connect_tcp(str(where.host), where.port))
        return sockets[0]

    try:
        async with asyncio.timeout(timeout_s):
            await ws_connect(
                lambda: listener,
                url,
                ssl_context=tls,
                extra_headers=headers,
                max_redirects=0,
                max_frame_size=message_limit_bytes,
                websocket_handshake_timeout=timeout_s + 1,
                logger_name=log,
                socket_factory=connected,
            )
    except BaseException:
        for sock in sockets:
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)
        raise


async def _connect_tcp(host: str, port: int) -> socket.socket:
    """A connection to the first of the host's addresses that takes one."""
    loop = asyncio.get_running_loop()
    trouble: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            trouble = trouble or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise trouble or OSError(f"no address is known for '{host}'")
