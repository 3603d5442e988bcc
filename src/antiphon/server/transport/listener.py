"""Listening sockets."""

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator, Sequence

from antiphon.errors import ServerError
from antiphon.server.transport.limits import UNSENT_LIMIT_BYTES


@contextlib.contextmanager
def open_listener(host: str, port: int) -> Iterator[socket.socket]:
    """
    A socket bound to the address, not yet listening.

    Raises:
        ServerError: the address is taken or invalid.
    """
    with _open_listener(host, port) as listener:
        yield listener


@contextlib.contextmanager
def open_listeners(processes: int, host: str, port: int) -> Iterator[Sequence[socket.socket]]:
    """
    A socket for each of several processes, all bound to the same address.

    Linux spreads connections over sockets that share an address (`SO_REUSEPORT`). With a single socket, the first
    process to wake up would take all connections that arrive together. Other systems don't spread, so there the
    processes share one socket.

    Raises:
        ServerError: the address is taken or invalid.
    """
    if sys.platform != "linux":
        with _open_listener(host, port) as alone:
            yield [alone] * processes
        return
    if port:  # with SO_REUSEPORT, bind does not fail on an address in use: so check without it first
        with _open_listener(host, port):
            pass
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_open_listener(host, port, is_shared=True))
        port_number = first.getsockname()[1]
        yield [first, *(stack.enter_context(_open_listener(host, port_number, is_shared=True)) for _ in range(processes - 1))]


def base_url(listener: socket.socket, scheme: str = "http") -> str:
    """The URL of the server for clients."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def _open_listener(host: str, port: int, *, is_shared: bool = False) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted sockets inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LIMIT_BYTES)
        try:
            listener.bind((host, port))
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            advice = (
                "Stop what uses the port, or choose another with --port or ANTIPHON_PORT."
                if in_use
                else "Choose another with --host or --port."
            )
            raise ServerError(f"Can't listen on {host}:{port}: {error.strerror or error}. {advice}") from None
        listener.setblocking(False)
        yield listener
