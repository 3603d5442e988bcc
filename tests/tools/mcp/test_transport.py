"""What the HTTP of MCP servers counts, and which of a server's addresses it dials."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from antiphon.tools.mcp.transport import PartCounter, Pools
from support.tools.mcp_servers import Servers

PARTS = [{"type": "text", "text": 'the type of a "type" \\u00e9 é'}] * 3


@given(st.lists(st.integers(0, 150)))
def test_parts_are_counted_however_they_come_in_pieces(cuts: list[int]):
    body = json.dumps(PARTS).encode()
    counter = PartCounter()
    assert sum(counter.count(body[begin:end]) for begin, end in pairwise([0, *sorted(cuts), len(body)])) == 3


@pytest.mark.parametrize("key", ["\\u0074ype", "t\\u0079pe", "ty\\u0070e", "typ\\u0065"])
def test_parts_whose_type_is_written_otherwise_are_counted(key: str):
    assert PartCounter().count(f'[{{"{key}":"text"}},{{"{key}":"text"}}]'.encode()) == 2


@contextlib.contextmanager
def silent_place(port: int) -> Iterator[str]:
    """An address of this machine that answers no attempt to connect."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.2", port))
        listener.listen(0)
        for _ in range(4):  # listen(2), Linux: where the queue is full, further attempts are ignored.
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.2", port))
        yield "127.0.0.2"


def test_the_next_address_is_dialled_where_one_does_not_answer(servers: Servers):
    port = int(servers.broken.url.rpartition(":")[2])

    async def main(silent_address: str) -> int:
        async def guard(host: str, port: int) -> Sequence[str]:
            return [silent_address, "127.0.0.1"]

        pools = Pools(guard)
        url = f"http://tools.example:{port}/401"
        reply = await pools.pool(is_own=False).request("POST", url, content=b"{}", extensions={"timeout": {"connect": 1.0}})
        await pools.close()
        return reply.status

    with silent_place(port) as address:
        assert asyncio.run(main(address)) == 401
