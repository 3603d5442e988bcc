"""Embedded engines in processes of their own: killed, stopped, replaced, and never left behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from antiphon.config.load import ModelEntry
from antiphon.engine_api import events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.remote.engine import RemoteEngine
from antiphon.engines.scripted.engine import build
from antiphon.errors import ApiError, ServerError
from antiphon.framing import pack_frame
from antiphon.link import MAX_SILENT_BEATS
from antiphon.runtime.registry import ModelRegistry
from antiphon.runtime.workers.child_engine import RESTART_TIMEOUT_S, ChildEngine, _EngineProcess, embedded_engine
from antiphon.wire.internal.worker_link import VERSION, BuildEngine, Heartbeat, Hello
from support.programs import forks
from support.runtime.worker_links import SETTINGS, Heard, ask

SCRIPTED = "antiphon.engines.scripted.engine"
SLOW = {"pace_ms": 5, "answers": [{"when": "long", "lines": [{"text": "la ", "repeat": 100_000}]}]}


WRITES = {"listens": False}
"""What native engines can't do by themselves is to listen."""


def child(options=SLOW, notice=lambda _line: None, module=SCRIPTED, restart_timeout_s=RESTART_TIMEOUT_S):
    place = BuildContext(weights_folder=Path(), base_folder=Path(), notice=notice)
    engine = embedded_engine(module, "m", {**options, "abilities": WRITES}, place, build("m", {}, place).capabilities)
    engine._restart_timeout_s = restart_timeout_s
    return engine


def play(scenario):
    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def running(engine):
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@contextlib.asynccontextmanager
async def answering(engine, id):
    """A conversation in the middle of a long answer."""
    heard = Heard()
    async with engine.open(SETTINGS, heard) as conversation:
        conversation.send(ask(id, "a long song"))
        await heard.until(lambda words: words)
        yield heard


def is_there(pid):
    """Whether a process runs; one that has ended and was not asked after does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def gone(pid):
    async with asyncio.timeout(10):
        while is_there(pid):  # noqa: ASYNC110 - the system tells of no end of a process that is not ours
            await asyncio.sleep(0.005)


def test_a_killed_process_ends_its_own_conversations_and_no_others_and_is_replaced():
    async def scenario():
        notices = []
        async with running(child(notice=notices.append)) as one, running(child()) as other:
            async with answering(one, "resp_1") as first, answering(one, "resp_2") as second, answering(other, "resp_3") as third:
                killed = one.pid
                os.kill(killed, signal.SIGKILL)
                assert isinstance(await first.end_of("resp_1"), events.ResponseFailed)
                assert isinstance(await second.end_of("resp_2"), events.ResponseFailed)
                count = len(third.words)
                await third.until(lambda words: len(words) > count + 5)
                assert not third.of(events.ResponseFailed, events.EngineLost)
            async with answering(one, "resp_4") as heard:
                assert heard.words
            assert one.pid != killed
        assert notices == [f"The process of the model 'm', {killed}, was killed by SIGKILL; it is being replaced."]

    play(scenario)


def test_a_conversation_whose_asks_carry_all_that_was_said_goes_on_with_the_next_process():
    async def scenario():
        async with running(child()) as engine:
            heard = Heard()
            async with engine.open(SETTINGS, heard) as conversation:
                for round in ("1", "2", "3"):
                    conversation.send(ask(f"long_{round}", "a long song"))
                    await heard.until(lambda words, round=round: any(word.id == f"long_{round}" for word in words))
                    os.kill(engine.pid, signal.SIGKILL)
                    assert isinstance(await heard.end_of(f"long_{round}"), events.ResponseFailed)
                    conversation.send(ask(f"short_{round}", "a song"))
                    assert isinstance(await heard.end_of(f"short_{round}"), events.ResponseEnded)
                conversation.send(ask("resp_4", "a long song"))
            assert not heard.of(events.EngineLost)

    play(scenario)


def test_a_conversation_that_is_more_than_its_asks_is_lost_with_its_process():
    async def scenario():
        async with running(child()) as engine:
            heard = Heard()
            async with engine.open(ConversationSettings(model="m", kind="audio"), heard) as conversation:
                conversation.send(ask("resp_1", "a long song"))
                await heard.until(lambda words: words)
                os.kill(engine.pid, signal.SIGKILL)
                await heard.until(lambda words: isinstance(words[-1], events.EngineLost))
                assert isinstance(heard.words[-2], events.ResponseFailed)

    play(scenario)


def test_whoever_asks_a_process_that_has_just_been_killed_is_answered_by_the_next():
    async def scenario():
        async with running(child()) as engine:
            for kind in ("responses", "audio"):
                heard = Heard()
                os.kill(engine.pid, signal.SIGKILL)  # of which nobody has heard yet
                async with engine.open(ConversationSettings(model="m", kind=kind), heard) as conversation:
                    conversation.send(ask("resp_1"))
                    assert (await heard.end_of("resp_1")).reason == "stop"

    play(scenario)


def test_what_is_asked_while_there_is_no_process_fails_when_there_is_none_soon():
    async def scenario():
        async with running(child(restart_timeout_s=0.01)) as engine:
            heard = Heard()
            async with engine.open(SETTINGS, heard) as conversation:
                os.kill(engine.pid, signal.SIGKILL)
                await gone(engine.pid)
                for number in range(3):
                    conversation.send(ask(f"resp_{number}"))
                    assert (await heard.end_of(f"resp_{number}")).status == 503

    play(scenario)


def test_a_process_that_is_silent_is_killed_and_replaced():
    async def scenario():
        async with running(child()) as engine, answering(engine, "resp_1") as heard:
            stopped = engine.pid
            os.kill(stopped, signal.SIGSTOP)
            end = engine._process.child.engine.endpoint
            for _ in range(MAX_SILENT_BEATS * 100):  # what was on its way is read, and then there is no more
                end.heartbeat()
                await asyncio.sleep(0)
            assert (await heard.end_of("resp_1")).status == 503
            await gone(stopped)
            async with answering(engine, "resp_2"):
                assert engine.pid != stopped

    play(scenario)


def test_while_a_process_is_being_replaced_whoever_asks_waits_a_moment_and_then_is_told_when_to_try_again():
    async def scenario():
        async with running(child(restart_timeout_s=0.01)) as engine:
            async with answering(engine, "resp_1") as heard:
                os.kill(engine.pid, signal.SIGKILL)
                await heard.end_of("resp_1")
            with pytest.raises(ApiError) as refused:
                async with engine.open(SETTINGS, Heard()):
                    pass
            assert (refused.value.status, refused.value.retry_after_s) == (503, 5)
            with pytest.raises(ApiError):
                await engine.count(ask("x"))
            with pytest.raises(ApiError):
                await engine.probe()

    play(scenario)


def test_a_process_answers_questions():
    async def scenario():
        async with running(child()) as engine:
            assert await engine.count(ask("x", "one two three")) == 3
            await engine.probe()

    play(scenario)


def test_a_stopped_engine_leaves_no_process_and_no_answer_open():
    async def scenario():
        engine = child()
        await engine.start()
        pid = engine.pid
        async with answering(engine, "resp_1") as heard:
            await engine.stop()
            await engine.stop()
            assert isinstance(await heard.end_of("resp_1"), events.ResponseFailed)
        assert not is_there(pid)
        assert engine.pid is None

    play(scenario)


def test_what_an_engine_needs_and_has_not_is_told_as_it_tells_it_itself(tmp_path):
    async def scenario():
        place = BuildContext(weights_folder=tmp_path, base_folder=tmp_path)
        engine = embedded_engine("antiphon.engines.local.engine", "m", {"path": "none.gguf"}, place, Capabilities())
        with pytest.raises(ServerError, match=f"There is no model file {tmp_path}/none.gguf"):
            await engine.start()
        assert engine.pid is None

    play(scenario)


def test_a_process_that_ends_before_it_can_answer_is_told_of():
    async def scenario():
        engine = ChildEngine(BuildEngine("no.such.module", "m", {}, "", "", {}), Capabilities())
        with pytest.raises(ServerError, match="ended with code 1 before it could answer"):
            await engine.start()

    play(scenario)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that processes of this test can build an engine from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return write


def test_notices_of_a_process_are_its_servers(tmp_path, module):
    name = module(
        "noticing",
        """
            from antiphon.engines.scripted import engine as scripted

            def build(model, options, place):
                place.notice(f"{model} is made in {place.base_folder} with {options}, {sorted(place.secrets)}")
                return scripted.build(model, {}, place)
        """,
    )

    async def scenario():
        notices = []
        place = BuildContext(weights_folder=Path(), base_folder=tmp_path, notice=notices.append, secrets={"MINE": "1", "OTHERS": "2"})
        engine = embedded_engine(name, "m", {"key_env": "MINE"}, place, Capabilities())
        async with running(engine):
            assert notices == [f"m is made in {tmp_path} with {{'key_env': 'MINE'}}, ['MINE']"]

    play(scenario)


def test_a_process_that_hangs_while_it_loads_its_model_is_killed(module):
    name = module(
        "hanging",
        """
            import os, signal

            def build(model, options, place):
                place.notice(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
        """,
    )

    async def scenario():
        notices = []
        engine = ChildEngine(BuildEngine(name, "m", {}, "", "", {}), Capabilities(), notices.append, load_silence_s=2)
        with pytest.raises(ServerError, match="stopped answering while it loaded the model"):
            await engine.start()
        await gone(int(notices[0]))

    play(scenario)


def test_a_process_that_loads_its_model_for_long_shows_that_it_is_alive(module, tmp_path):
    name = module(
        "loading",
        f"""
            import asyncio, pathlib
            from antiphon.engines.scripted import engine as scripted

            class Loading:
                async def start(self):
                    while not pathlib.Path({str(tmp_path / "loaded")!r}).exists():
                        await asyncio.sleep(0.001)

            def build(model, options, place):
                engine = scripted.build(model, {{}}, place)
                engine.start = Loading().start
                return engine
        """,
    )

    async def scenario():
        process = _EngineProcess(BuildEngine(name, "m", {}, "", "", {}), lambda: None, lambda _line: None)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(process.start())
            for beats in range(2):  # of each end: neither takes the other for dead
                before_s = process.engine.silent_s
                while process.engine.silent_s >= before_s:
                    before_s = process.engine.silent_s
                    await asyncio.sleep(0.001)
                assert not starting.done(), beats
            (tmp_path / "loaded").touch()
        await process.stop(0)

    play(scenario)


def test_a_process_whose_native_code_loads_its_model_in_silence_is_left_to_it():
    async def scenario():
        remote = RemoteEngine()
        remote.endpoint.receive(pack_frame(Heartbeat()))
        for _ in range(MAX_SILENT_BEATS * 10):
            remote.endpoint.heartbeat()
        assert not remote.endpoint.is_over
        remote.endpoint.receive(pack_frame(Hello(version=VERSION, abilities=Capabilities(), model="m")))
        remote.endpoint.receive(pack_frame(Heartbeat()))
        for _ in range(MAX_SILENT_BEATS + 1):
            remote.endpoint.heartbeat()
        assert remote.endpoint.is_silent

    play(scenario)


SERVER = """
    import asyncio, sys
    from pathlib import Path
    from antiphon.engine_api.engine import BuildContext
    from antiphon.engines.scripted.engine import build
    from antiphon.runtime.workers.child_engine import embedded_engine

    async def main():
        place = BuildContext(weights_folder=Path(), base_folder=Path())
        engine = embedded_engine("antiphon.engines.scripted.engine", "m", {}, place, build("m", {}, place).capabilities)
        await engine.start()
        print(engine.pid, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize("is_stopped", [False, True], ids=["idle", "stopped"])
def test_a_process_ends_with_its_server_however_that_ends(is_stopped):
    server = forks.Popen([sys.executable, "-c", textwrap.dedent(SERVER)], stdout=subprocess.PIPE, text=True)
    with server:
        pid = int(server.stdout.readline())
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        server.kill()
        server.wait()
        asyncio.run(gone(pid))


def test_native_engines_have_a_process_of_their_own_where_the_settings_say_so(tmp_path):
    entries = [
        ModelEntry(name="a", engine="local", options={"model": "smollm2-135m-instruct"}),
        ModelEntry(name="b", engine="scripted"),
    ]
    for native_in, kinds in (("process", [True, False]), ("thread", [False, False])):
        models = ModelRegistry(entries, tmp_path, 1, print, native_mode=native_in).all()
        assert [isinstance(model.engine, ChildEngine) for model in models] == kinds
        assert models[0].engine.capabilities.counts_tokens


def test_a_wrong_option_of_a_native_engine_is_told_before_a_process_is_started(tmp_path):
    with pytest.raises(ServerError, match="'colour'"):
        ModelRegistry([ModelEntry(name="a", engine="local", options={"colour": 1})], tmp_path, 1, print, native_mode="process")
