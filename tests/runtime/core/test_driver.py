"""The driver: effects in order, nothing promised before it is kept, and one write for what came together."""

import asyncio
import contextlib
import itertools

import pytest

from antiphon.engine_api import commands, events, history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.scripted.engine import Script, ScriptedEngine
from antiphon.errors import ServerError
from antiphon.protocols.responses.ending import INTERRUPTED_MESSAGE, fail_interrupted_record
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.protocols.session import FromClient
from antiphon.runtime.core.driver import BATCH_SIZE, MAX_PENDING_EVENTS, Driver
from antiphon.runtime.core.metrics import Metrics
from antiphon.stores.memory import MemoryStore
from antiphon.wire.responses import items
from antiphon.wire.responses.request import CreateRequest

SETTINGS = ConversationSettings(model="m")


class Way:
    """How sessions of these tests begin: their engine is asked by them, or before them."""

    asks_first = False


@pytest.fixture(params=[False, True], ids=["", "asked first"], autouse=True)
def way(request):
    Way.asks_first = request.param


class Listener:
    """A client that writes down the types of what leaves in each write."""

    def __init__(self):
        self.pending, self.writes, self.closed = [], [], []
        self.heard = asyncio.Event()

    def send(self, event):
        self.pending.append(event.type.removeprefix("response."))

    def flush(self):
        if self.pending:
            self.writes.append(self.pending)
            if "output_text.delta" in self.pending:
                self.heard.set()
            self.pending = []

    def close(self, fault):
        self.closed.append(fault)

    @property
    def sent(self):
        return list(itertools.chain.from_iterable(self.writes))


class Gated(MemoryStore):
    """A store that keeps nothing before it is let, or fails the n-th time it is asked."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.gate = asyncio.Event()
        self.fails_at = fails_at
        self.asked = 0

    async def put(self, record, turn=None):
        self.asked += 1
        await self.gate.wait()
        if self.asked == self.fails_at:
            raise ServerError("The disk is full.")
        await super().put(record, turn)

    async def finish(self, record, turn=None):
        self.asked += 1
        await self.gate.wait()
        if self.asked == self.fails_at:
            raise ServerError("The disk is full.")
        return await super().finish(record, turn)


def session_for(text="Hi there", stream=True):
    numbers = itertools.count(1)
    order = ResolvedRequest(
        id="resp_1",
        tenant="",
        created_at=1,
        model="m",
        request=CreateRequest(stream=stream),
        capabilities=Capabilities(),
        input_items=(items.Message(role="user", content=text),),
    )
    return ResponsesSession(order, lambda prefix: f"{prefix}_{next(numbers)}")


def driven(store, engine=None, beside=None):
    """Run a session to its end, with `beside(driver)` running beside it; the client that it talked to."""

    async def run():
        client = Listener()
        session = session_for()
        driver = Driver(session, client, store, clock=lambda: 5.0)
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            if beside is not None:
                tasks.create_task(beside(driver, client))
            await driver.run(engine or ScriptedEngine(Script()), SETTINGS, None, ask=session.ask if Way.asks_first else None)
        return client

    return asyncio.run(run())


def test_what_came_together_leaves_in_one_write():
    client = driven(MemoryStore())
    assert client.sent[0] == "created"
    assert client.sent[-1] == "completed"
    deltas = [write for write in client.writes if "output_text.delta" in write]
    assert len(deltas) == 1, "the engine said all its words at once"
    assert client.closed == [None]


def test_nothing_is_announced_before_it_is_kept_though_the_engine_works_already():
    store = Gated()

    async def beside(driver, client):
        for _ in range(50):
            await asyncio.sleep(0)
        assert client.sent == []
        assert client.closed == []
        store.gate.set()

    client = driven(store, beside=beside)
    assert client.sent[:2] == ["created", "in_progress"]
    assert client.sent[-1] == "completed"
    assert store.asked == 2


def test_a_beginning_that_cannot_be_kept_closes_with_the_fault_and_not_a_word():
    store = Gated(fails_at=1)
    store.gate.set()
    client = driven(store)
    assert client.sent == []
    assert [fault.message for fault in client.closed] == ["The disk is full."]


class Shared(MemoryStore):
    """A store in which another server has taken this one for dead, and written off all that it works on."""

    async def put(self, record, turn=None):
        await super().put(record, turn)
        self._ids_since_open.clear()
        assert await self.write_off(fail_interrupted_record(record))


def test_a_response_that_was_written_off_stays_failed_and_its_client_is_told_so():
    store = Shared()
    client = driven(store)
    assert client.sent[-2:] == ["error", "failed"]
    assert "completed" not in client.sent
    assert [error.message for error in client.closed] == [INTERRUPTED_MESSAGE]
    kept = asyncio.run(store.get("", "resp_1"))
    assert kept.status == "failed" and INTERRUPTED_MESSAGE.encode() in kept.body
    # It may run on: a record is also written off where only its end could not be stored.
    assert INTERRUPTED_MESSAGE == "The server stopped, or could not store this response, before it was finished."


def test_a_response_that_was_deleted_meanwhile_stays_deleted():
    store = Gated()

    async def beside(driver, client):
        store.gate.set()
        await client.heard.wait()
        assert await store.delete("", "resp_1")

    client = driven(store, ScriptedEngine(Script(pace_ms=1)), beside)
    assert client.sent[-1] == "completed"
    assert asyncio.run(store.get("", "resp_1")) is None


def test_an_end_that_cannot_be_kept_is_a_failure_and_not_completed():
    store = Gated(fails_at=2)
    store.gate.set()
    client = driven(store)
    assert client.sent[-2:] == ["error", "failed"]
    assert "completed" not in client.sent
    assert client.closed[0].message == "The disk is full."


def test_hanging_up_cancels_the_engine_and_keeps_what_was_said():
    store = MemoryStore()
    slow = ScriptedEngine(Script(pace_ms=1, answers=()))

    async def beside(driver, client):
        await client.heard.wait()
        driver.hang_up()

    client = driven(store, slow, beside)
    assert "completed" not in client.sent
    assert asyncio.run(store.get("", "resp_1")).status == "cancelled"


def test_hanging_up_before_the_session_began_cancels_it_as_soon_as_it_has():
    store = MemoryStore()

    async def run():
        session = session_for()
        driver = Driver(session, Listener(), store, clock=lambda: 5.0)
        driver.hang_up()
        async with asyncio.timeout(10):
            await driver.run(ScriptedEngine(Script(pace_ms=1000)), SETTINGS, None, ask=session.ask if Way.asks_first else None)

    asyncio.run(run())
    assert asyncio.run(store.get("", "resp_1")).status == "cancelled"


def test_hanging_up_while_the_engine_is_opened_asks_it_nothing_and_cancels_the_session():
    class Opening(ScriptedEngine):
        @contextlib.asynccontextmanager
        async def open(self, settings, deliver):
            driver.hang_up()
            async with super().open(settings, deliver) as conversation:
                yield conversation

    def ask():
        asked.append(command := session.ask())
        return command

    asked, store, session, client = [], MemoryStore(), session_for(), Listener()
    driver = Driver(session, client, store, clock=lambda: 5.0)

    async def run():
        async with asyncio.timeout(10):
            await driver.run(Opening(Script(pace_ms=1000)), SETTINGS, None, ask=ask if Way.asks_first else None)

    asyncio.run(run())
    assert asked == []
    assert asyncio.run(store.get("", "resp_1")).status == "cancelled"


class Full:
    """An engine with no room for anything."""

    capabilities = Capabilities()

    def open(self, settings, deliver):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    def send(self, word):
        raise EngineOverrun("8 answers are waiting")

    def pause(self):
        pass

    def resume(self):
        pass


class Silent(Full):
    """An engine that takes everything and answers nothing."""

    def send(self, command):
        pass


def test_an_engine_without_room_is_told_as_overloaded():
    client = driven(MemoryStore(), Full())
    assert client.sent[-2:] == ["error", "failed"]
    assert (client.closed[0].status, client.closed[0].code) == (503, "server_is_overloaded")
    assert "8 answers are waiting" in client.closed[0].message


def test_history_reaches_the_engine():
    session = session_for("What?")
    told = session.handle(FromClient(None, 1.0))[0].command
    assert told.history == (history.Message("user", (history.TextPart("What?"),)),)


class Firehose(Full):
    """An engine that delivers all its events at once, without regard to pauses."""

    def __init__(self, words):
        self.words = words

    def open(self, settings, deliver):
        self.deliver = deliver
        return self

    def send(self, word):
        if isinstance(word, commands.Respond):
            asyncio.get_running_loop().call_soon(self.deliver, self.words)


def flood(count):
    return [*(events.TextDelta("resp_1", "x") for _ in range(count)), events.ResponseEnded("resp_1")]


def test_what_comes_all_at_once_leaves_in_bounded_writes_and_in_order():
    client = driven(MemoryStore(), Firehose(flood(1000)))
    assert client.sent.count("output_text.delta") == 1000
    assert client.sent[-1] == "completed"
    assert max(map(len, client.writes)) <= BATCH_SIZE + 4, "the first has what opens the response, too"


def test_a_client_that_is_behind_gets_no_more_of_a_flood_until_it_has_caught_up():
    async def beside(driver, client):
        await client.heard.wait()
        driver.pause()
        for _ in range(50):
            await asyncio.sleep(0)
        assert client.sent.count("output_text.delta") <= 2 * BATCH_SIZE
        driver.resume()

    client = driven(MemoryStore(), Firehose(flood(1000)), beside)
    assert client.sent.count("output_text.delta") == 1000
    assert client.sent[-1] == "completed"


class Pausable(Firehose):
    """A firehose that notes when it is paused."""

    def __init__(self, words):
        super().__init__(words)
        self.told = []

    def pause(self):
        self.told.append("pause")

    def resume(self):
        self.told.append("resume")


def test_an_engine_that_is_quicker_than_its_answer_can_be_handled_is_told_to_wait():
    """Unbounded queues: what a worker said faster than it was handled took all the memory that there was."""
    quick, few = Pausable(flood(2 * MAX_PENDING_EVENTS)), Pausable(flood(MAX_PENDING_EVENTS // 2))
    for engine in (quick, few):
        assert driven(MemoryStore(), engine).sent[-1] == "completed"
    assert (quick.told, few.told) == (["pause", "resume"], [])


def test_an_engine_is_told_once_to_wait_whoever_is_behind():
    async def beside(driver, client):
        await client.heard.wait()
        driver.pause()
        assert engine.told == ["pause"]
        for _ in range(50):
            await asyncio.sleep(0)
        driver.resume()

    engine = Pausable(flood(2 * MAX_PENDING_EVENTS))
    assert driven(MemoryStore(), engine, beside).sent[-1] == "completed"
    assert engine.told == ["pause", "resume"]


def test_halting_tells_the_client_why_and_keeps_the_failure():
    store = MemoryStore()
    slow = ScriptedEngine(Script(pace_ms=1, answers=()))

    async def beside(driver, client):
        await client.heard.wait()
        driver.shut_down(ServerError("The server is shutting down.", status=503))

    client = driven(store, slow, beside)
    assert client.sent[-2:] == ["error", "failed"]
    assert client.closed[0].message == "The server is shutting down."
    assert asyncio.run(store.get("", "resp_1")).status == "failed"


def test_a_session_that_is_halted_before_its_engine_is_there_ends_as_soon_as_it_is():
    async def run():
        client = Listener()
        driver = Driver(session_for(), client, MemoryStore(), clock=lambda: 5.0)
        driver.shut_down(ServerError("The server is shutting down."))
        async with asyncio.timeout(10):
            await driver.run(Silent(), SETTINGS, None)
        return client

    assert asyncio.run(run()).closed[0].message == "The server is shutting down."


def test_what_is_written_to_the_store_is_counted():
    metrics = Metrics()

    async def run(store):
        await Driver(session_for(), Listener(), store, metrics=metrics).run(ScriptedEngine(Script()), SETTINGS, None)

    failing = Gated(fails_at=2)
    failing.gate.set()
    asyncio.run(run(MemoryStore()))
    asyncio.run(run(failing))
    assert metrics.store_writes == {"stored": 3, "failed": 1}


class Noting(Full):
    """An engine that notes what it is sent, and says a word at once."""

    def __init__(self, notes):
        self.notes = notes

    def open(self, settings, deliver):
        self.deliver = deliver
        return self

    def send(self, command):
        self.notes.append(type(command).__name__)
        if isinstance(command, commands.Respond):
            self.deliver((events.TextDelta(command.id, "Hi"), events.ResponseEnded(command.id)))


def test_what_the_engine_says_at_once_comes_after_the_beginning():
    notes = []
    client = driven(MemoryStore(), Noting(notes))
    assert notes == ["Respond"]
    assert client.sent[:3] == ["created", "in_progress", "output_item.added"]
    assert client.sent[-1] == "completed"


def test_all_that_come_together_are_asked_before_one_begins():
    notes = []

    class NotingListener(Listener):
        def flush(self):
            notes.extend(self.pending)
            super().flush()

    async def run():
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for _ in range(3):
                session = session_for()
                driver = Driver(session, NotingListener(), MemoryStore(), clock=lambda: 5.0)
                tasks.create_task(driver.run(Noting(notes), SETTINGS, None, ask=session.ask))

    asyncio.run(run())
    assert notes[:3] == ["Respond"] * 3
    assert notes.count("Respond") == 3
    assert notes.count("completed") == 3


@pytest.mark.parametrize("how", ["hang up", "shut down"])
def test_a_session_that_ends_while_its_engine_is_asked_cancels_it_once(how):
    notes = []

    class Slow(Noting):
        def send(self, command):
            notes.append(type(command).__name__)
            if isinstance(command, commands.Respond):
                driver.hang_up() if how == "hang up" else driver.shut_down(ServerError("The server stops."))

    session, client = session_for(), Listener()
    driver = Driver(session, client, MemoryStore(), clock=lambda: 5.0)

    async def run():
        async with asyncio.timeout(10):
            await driver.run(Slow(notes), SETTINGS, None, ask=session.ask)

    asyncio.run(run())
    assert notes == ["Respond", "Cancel"]
    assert client.sent[:2] == ["created", "in_progress"]
    assert len(client.closed) == 1
