"""Models that are replaced while they are in use."""

import asyncio
import contextlib
import gc
from pathlib import Path

import pytest

from antiphon.config.load import ModelEntry
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError, ServerError
from antiphon.runtime.registry import ModelRegistry
from antiphon.runtime.scheduling.local import LocalCoordinator

FOREVER_S = 3600
PATIENCE_S = 20


class Counting:
    """An engine that counts its starts and stops."""

    capabilities = Capabilities()

    def __init__(self, options):
        self.options = options
        self.log = []
        self.stop_event = asyncio.Event()

    async def start(self):
        self.log.append("start")
        if self.options.get("fails"):
            raise ServerError("There is no such file.")
        if self.options.get("hangs"):
            await asyncio.Event().wait()

    async def stop(self):
        self.log.append("stop")
        self.stop_event.set()


class Builder:
    """Builds engines, and remembers them."""

    def __init__(self):
        self.engines = []

    def __call__(self, _name):
        return self.build

    def build(self, _model, options, _context):
        self.engines.append(Counting(options))
        return self.engines[-1]


@pytest.fixture
def builder():
    return Builder()


def entry(name, **options):
    return ModelEntry(name=name, engine="counting", options=options)


@contextlib.asynccontextmanager
async def registry(builder, *entries, secrets=None):
    models = ModelRegistry(entries, Path(), 1, print, secrets or {}, coordinator=LocalCoordinator(), find_builder=builder)
    await models.start()
    try:
        yield models
    finally:
        await models.stop()


def in_loop(scenario):
    async def run():
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(run())


def test_an_unchanged_model_is_neither_built_nor_started_again(builder):
    async def scenario():
        async with registry(builder, entry("a"), entry("b")) as models:
            engine = models.find("a").engine
            changes = await models.replace([entry("c"), entry("a")], {}, 2, FOREVER_S)
            assert (changes.added, changes.changed, changes.removed, changes.problems) == (["c"], [], ["b"], {})
            assert models.find("a").engine is engine and engine.log == ["start"] and len(builder.engines) == 3
            assert [(model.name, model.created_at) for model in models.all()] == [("c", 2), ("a", 1)]

    in_loop(scenario)


def test_the_engine_of_a_removed_model_stops_when_its_last_user_lets_it_go(builder):
    async def scenario():
        async with registry(builder, entry("a-*"), entry("b")) as models:
            users = [models.find("a-1"), models.find("a-2")]
            await models.replace([entry("b")], {}, 2, FOREVER_S)
            with pytest.raises(ClientError):
                models.find("a-1")
            engine = users[0].engine
            for _ in range(2):
                await asyncio.sleep(0)
                assert engine.log == ["start"]
                users.pop()
            await engine.stop_event.wait()
            assert engine.log == ["start", "stop"]

    gc.disable()  # counting references is enough
    try:
        in_loop(scenario)
    finally:
        gc.enable()


def test_after_the_deadline_it_stops_whoever_uses_it(builder):
    async def scenario():
        async with registry(builder, entry("a")) as models:
            user = models.find("a")
            await models.replace([entry("a", other=1)], {}, 2, 0.01)
            await user.engine.stop_event.wait()
            assert models.find("a").engine is not user.engine and models.find("a").engine.log == ["start"]

    in_loop(scenario)


def test_the_end_of_the_server_stops_what_is_still_in_use(builder):
    async def scenario():
        async with registry(builder, entry("a")) as models:
            user = models.find("a")
            await models.replace([], {}, 2, FOREVER_S)
        assert user.engine.log == ["start", "stop"]

    in_loop(scenario)


def test_a_model_that_can_not_start_is_stopped_and_the_former_one_stays(builder):
    async def scenario():
        async with registry(builder, entry("a")) as models:
            engine = models.find("a").engine
            changes = await models.replace([entry("a", fails=True), entry("b", fails=True), entry("c")], {}, 2, FOREVER_S)
            assert changes.problems == {"a": "There is no such file.", "b": "There is no such file."}
            assert (changes.added, changes.changed) == (["c"], [])
            assert models.find("a").engine is engine and not models.has("b")
            assert [each.log for each in builder.engines] == [["start"], ["start", "stop"], ["start", "stop"], ["start"]]

    in_loop(scenario)


def test_another_secret_makes_another_model(builder):
    async def scenario():
        async with registry(builder, entry("a", api_key_env="KEY"), entry("b"), secrets={"KEY": "1"}) as models:
            changes = await models.replace([entry("a", api_key_env="KEY"), entry("b")], {"KEY": "2", "OTHER": "3"}, 2, FOREVER_S)
            assert changes.changed == ["a"]

    in_loop(scenario)


def test_workers_of_a_model_are_those_of_its_present_engine(builder):
    async def scenario():
        coordinator = LocalCoordinator()
        models = ModelRegistry([entry("a"), entry("b")], Path(), 1, print, coordinator=coordinator, find_builder=builder)
        await models.start()
        await models.replace([entry("a", other=1)], {}, 2, FOREVER_S)
        assert [(view.worker.model, view.worker.engine) for view in coordinator.workers()] == [("a", models.find("a").engine)]
        await models.stop()

    in_loop(scenario)


def test_a_server_that_stops_meanwhile_leaves_no_engine_behind(builder):
    async def scenario():
        async with registry(builder, entry("a")) as models:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(models.replace([entry("b"), entry("c", hangs=True)], {}, 2, FOREVER_S))
                while len(builder.engines) < 3:  # noqa: ASYNC110 - the first is started by then
                    await asyncio.sleep(0)
                task.cancel()
            assert task.cancelled()
            assert [each.log for each in builder.engines] == [["start"], ["start", "stop"], ["start", "stop"]]
            assert [model.name for model in models.all()] == ["a"]

    in_loop(scenario)
