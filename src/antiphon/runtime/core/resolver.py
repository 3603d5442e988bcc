"""
Resolves host names that clients give, in threads, as the system's resolver blocks.

Who gives a name also decides how long its servers take to answer, and a look-up can't be stopped once it runs. So no
client gets more than a share of the threads: its further names wait for its own, and those of others don't.
"""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar

from msgspec import Struct, field

THREADS = 128
CLIENT_THREADS = 8
"""The most that one client has."""

asking_client: ContextVar[str] = ContextVar("asking_client", default="")
"""For whom names are resolved: the id of a key, or an address of a client without one; empty for the server itself."""

_Lookup = Callable[[str], Sequence[str]]


class _Waiting(Struct, eq=False):
    host: str
    future: Future[Sequence[str]]


class _Client(Struct, eq=False):
    running: int = 0
    waiting: deque[_Waiting] = field(default_factory=deque)


class Resolver:
    """
    Resolves host names for any event loop.

    Args:
        look_up: returns the addresses of a host name, and raises `OSError` if there are none; it may block.
        threads: of all clients.
        client_threads: the most of one client.
    """

    def __init__(self, look_up: _Lookup, threads: int = THREADS, client_threads: int = CLIENT_THREADS) -> None:
        # Not those of the event loop: uvloop resolves names in two threads, which the server needs to find its upstreams.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="antiphon-resolver")
        self._look_up = look_up
        self._client_threads = client_threads
        self._lock = threading.Lock()
        self._clients: dict[str, _Client] = {}

    async def resolve(self, host: str) -> Sequence[str]:
        """
        The addresses of a name. Who gives up leaves the thread to its look-up, which still counts as the client's.

        Raises:
            OSError: there are none.
        """
        name = asking_client.get()
        future: Future[Sequence[str]] = Future()
        with self._lock:
            client = self._clients.setdefault(name, _Client())
            client.waiting.append(_Waiting(host, future))
            self._start_next(name, client)
        return await asyncio.wrap_future(future)

    def _start_next(self, name: str, client: _Client) -> None:
        """Start what of a client's waits, up to its share; the lock is held."""
        while client.waiting and client.running < self._client_threads:
            waiting = client.waiting.popleft()
            if waiting.future.set_running_or_notify_cancel():
                client.running += 1
                self._threads.submit(self._run, name, client, waiting)

    def _run(self, name: str, client: _Client, waiting: _Waiting) -> None:
        try:
            addresses = self._look_up(waiting.host)
        except BaseException as error:
            self._give_back(name, client)
            waiting.future.set_exception(error)
        else:
            self._give_back(name, client)
            waiting.future.set_result(addresses)

    def _give_back(self, name: str, client: _Client) -> None:
        with self._lock:
            client.running -= 1
            self._start_next(name, client)
            # Else the addresses of all clients that ever came would fill the memory.
            if not client.running:
                del self._clients[name]


def _ask_system(host: str) -> Sequence[str]:
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


system_resolver = Resolver(_ask_system)
"""The resolver of this process."""
