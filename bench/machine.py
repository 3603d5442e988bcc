"""
What does an event cost the session and the driver, alone, and does that grow with the number of streams?

Scripted words go through `Driver.deliver` to a client that frames them for the wire; there is no socket and no engine, so that what
is counted is ours alone. CPU time of this process, medians of several runs.

    python bench/machine.py
"""

import sys

sys.path[0] += "/common"  # not this folder: its `types.py` and `queue.py` are not the standard library's

import asyncio
import itertools
import statistics
import time

from antiphon.engine_api import events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.protocols.session import FromClient
from antiphon.runtime.core.driver import Driver
from antiphon.runtime.core.ids import new_id, padding
from antiphon.stores.memory import MemoryStore
from antiphon.wire.responses import items
from antiphon.wire.responses.profiles import PROFILES, EventEncoder
from antiphon.wire.responses.request import CreateRequest
from measuring import print_head, print_row

STREAMS = (1, 10, 100, 1_000)
EVENTS = 200_000
ROUNDS = 5


class Counting:
    """A client that frames every event and throws the bytes away."""

    def __init__(self, encoding):
        self.encoding, self.out, self.bytes, self.said = encoding, bytearray(), 0, []
        self.send = self.said.append

    def flush(self):
        self.encoding.encode_sse_into(self.said, self.out)
        self.said.clear()
        self.bytes += len(self.out)
        self.out.clear()

    def close(self, fault):
        assert fault is None


class Mute:
    """A conversation with an engine that answers nothing."""

    def send(self, command):
        pass

    def pause(self):
        pass

    def resume(self):
        pass


def begin(encoding, store):
    request = CreateRequest(model="m", stream=True, store=False)
    order = ResolvedRequest(
        id=new_id("resp"),
        tenant="",
        created_at=1,
        model="m",
        request=request,
        capabilities=Capabilities(),
        input_items=(items.Message(role="user", content="Count."),),
    )
    session = ResponsesSession(order, new_id, padding())
    driver = Driver(session, Counting(encoding), store)
    driver._conversation = Mute()
    return order, driver


async def cost_ns(streams):
    """Nanoseconds of CPU an event, with so many streams taking turns."""
    encoding, store = EventEncoder(PROFILES["openai"]), MemoryStore()
    begun = [begin(encoding, store) for _ in range(streams)]
    for order, driver in begun:
        driver.receive(FromClient(order, 1.0))
    words = [(driver.deliver, (events.TextDelta(order.id, " word"),)) for order, driver in begun]
    rounds = itertools.cycle(words)
    for deliver, said in itertools.islice(rounds, streams):
        deliver(said)
    at = time.process_time_ns()
    for deliver, said in itertools.islice(rounds, EVENTS):
        deliver(said)
    return (time.process_time_ns() - at) / EVENTS


def main():
    print_head("streams", "µs an event", "to one stream")
    first = None
    for streams in STREAMS:
        cost = statistics.median(asyncio.run(cost_ns(streams)) for _ in range(ROUNDS))
        first = first or cost
        print_row(f"{streams:,}", f"{cost / 1000:.2f}", f"{cost / first:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
