"""An operator's functions in their process, and the limits of their calls."""

import asyncio
import contextlib
import os
import sys
import textwrap

import pytest
from structlog.testing import capture_logs

from antiphon.config.tools.functions import FunctionsEntry
from antiphon.tools.functions.call import mask_paths
from antiphon.tools.functions.server import RETRY_S, FunctionLimits, FunctionServer, function_servers
from antiphon.tools.mcp.server import ListingError
from antiphon.wire.responses.hosted_calls import McpProtocolError, McpToolExecutionError

FILE = '''
"""Functions for tests."""
import asyncio, dataclasses, os, subprocess, sys, time
import helper

COUNT = 0

class Refused(Exception):
    """No."""

@dataclasses.dataclass
class Total:
    sum: int

def add(a: int, b: int = 1) -> Total:
    """Add two numbers."""
    return Total(a + b)

def greet(name: str) -> str:
    """Greet."""
    return helper.GREETING + name

async def slowly(text: str) -> str:
    """Say it after a moment."""
    await asyncio.sleep(0.01)
    return text

def count() -> int:
    """Count the calls."""
    global COUNT
    COUNT += 1
    return COUNT

def fail(kind: str) -> None:
    """Fail."""
    errors = {"value": ValueError("no town in /etc/towns/list.txt, see https://a.example/b"), "own": Refused("closed today"),
              "key": KeyError("Berne"), "file": FileNotFoundError(2, "No such file", "/home/op/secret"),
              "other": RuntimeError("db.internal:5432 refused 'op'"), "exit": SystemExit(3)}
    raise errors[kind]

def crash() -> None:
    """Crash."""
    os.abort()

def hang() -> None:
    """Hang, with a child process."""
    subprocess.Popen(["sleep", "1000"])
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass

def grow() -> int:
    """Take memory."""
    return len(bytearray(2 << 30))

KEPT = []

def keep() -> int:
    """Take memory in small pieces, and let none go."""
    while True:
        KEPT.append([len(KEPT)])

def long(size: int) -> str:
    """Much text."""
    print("printed" * 10)
    return "x" * size

def odd(kind: str) -> object:
    """What is no JSON."""
    return {"object": object(), "half": "a\\ud800b", "none": None, "nested": {"a": [1, 2.5, True]}, "deep": deep()}[kind]

def deep() -> list:
    """A list that contains itself."""
    endless: list = []
    endless.append(endless)
    return endless

def secrets() -> list[str]:
    """The server's variables."""
    return [name for name in os.environ if name.startswith("ANTIPHON_")]

def parent() -> int:
    """End the process of all functions."""
    os.kill(os.getppid(), 9)
    time.sleep(1000)

def where() -> int:
    """The process of all functions."""
    return os.getppid()

def _helper(anything):
    pass
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    (folder / "helper.py").write_text("GREETING = 'Hello, '\ndef not_offered(x): pass\n")
    path = folder / "tools.py"
    path.write_text(FILE)
    return path


@contextlib.asynccontextmanager
async def serving(file, **limits):
    server = FunctionServer("mine", file=str(file), read_only=("add",), limits=FunctionLimits(**limits))
    try:
        yield server
    finally:
        await server.close()


def text_of(error):
    assert isinstance(error, McpToolExecutionError)
    ((part),) = error.content
    return part["text"]


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario, 120))


def test_functions_are_listed_and_called(file):
    async def scenario():
        async with serving(file) as server:
            tools = {each.name: each for each in await server.list_tools()}
            assert "_helper" not in tools and "not_offered" not in tools
            assert (tools["add"].description, tools["add"].read_only, tools["greet"].read_only) == ("Add two numbers.", True, False)
            assert tools["add"].input_schema["required"] == ["a"]
            assert await server.call_tool("add", {"a": 2}) == '{"sum":3}'
            assert await server.call_tool("greet", {"name": "Ann"}) == "Hello, Ann"
            assert await server.call_tool("slowly", {"text": "ä"}) == "ä"
            assert await server.call_tool("odd", {"kind": "half"}) == "a?b"
            assert await server.call_tool("odd", {"kind": "none"}) == "null"
            assert await server.call_tool("odd", {"kind": "nested"}) == '{"a":[1,2.5,true]}'
            unknown = await server.call_tool("nothing", {})
            assert isinstance(unknown, McpProtocolError) and (unknown.code, unknown.message) == (-32602, "Unknown tool: nothing")

    run(scenario())


def test_mistakes_and_failures_are_told_without_paths_hosts_or_users(file):
    async def scenario():
        async with serving(file) as server:
            told = {
                kind: text_of(await server.call_tool("fail", {"kind": kind})) for kind in ("value", "own", "key", "file", "other", "exit")
            }
            assert told == {
                "value": "The function failed: ValueError: no town in [path], see https://a.example/b",
                "own": "The function failed: Refused: closed today",
                "key": "The function failed: KeyError: 'Berne'",
                "file": "The function failed: FileNotFoundError",
                "other": "The function failed: RuntimeError",
                "exit": "The function failed: SystemExit",
            }
            assert text_of(await server.call_tool("add", {"a": "x"})) == "The arguments are wrong: Expected `int`, got `str`, at 'a'."
            assert text_of(await server.call_tool("add", {"a": 1, "c": 1})) == "The arguments are wrong: Object contains unknown field `c`."
            assert "no JSON" in text_of(await server.call_tool("odd", {"kind": "object"}))
            assert "RecursionError" in text_of(await server.call_tool("odd", {"kind": "deep"}))
            assert text_of(await server.call_tool("greet", {"name": "x" * (2 << 20)})).endswith("more than 1048576 bytes.")

    run(scenario())


def test_a_call_ends_at_its_limits_and_harms_no_other(file):
    async def scenario():
        async with serving(file, call_s=3, memory_mib=256, output_chars=100) as server:
            process = await server.call_tool("where", {})
            async with asyncio.TaskGroup() as group:
                hang = group.create_task(server.call_tool("hang", {}))
                crash = group.create_task(server.call_tool("crash", {}))
                grow = group.create_task(server.call_tool("grow", {}))
            assert text_of(hang.result()) == "The function took longer than 3 seconds (tools.functions.call_s), and was stopped."
            assert text_of(crash.result()) == "The function crashed."
            assert text_of(grow.result()) == "The function needed more memory than 256 MiB (tools.functions.memory_mib)."
            assert await server.call_tool("long", {"size": 105}) == (
                "x" * 100 + "\n[5 more characters were left out (tools.functions.output_chars).]"
            )
            assert await server.call_tool("where", {}) == process

    run(scenario())


def test_a_call_with_no_memory_left_can_say_so(file):
    async def scenario():
        async with serving(file, memory_mib=64) as server:
            text = text_of(await server.call_tool("keep", {}))
            assert text == "The function needed more memory than 64 MiB (tools.functions.memory_mib)."

    run(scenario())


def test_each_call_has_a_memory_of_its_own(file):
    async def scenario():
        async with serving(file) as server:
            assert [await server.call_tool("count", {}) for _ in range(3)] == ["1", "1", "1"]

    run(scenario())


def test_no_more_calls_run_at_once_than_allowed(file):
    async def scenario():
        async with serving(file, parallel=1, call_s=2) as server:
            await server.list_tools()
            async with asyncio.TaskGroup() as group:
                first = group.create_task(server.call_tool("hang", {}))
                await asyncio.sleep(0)
                second = group.create_task(server.call_tool("add", {"a": 1}))
            assert "took longer" in text_of(first.result())
            second = second.result()
            assert second == '{"sum":2}' or "at most 1 at once (tools.functions.parallel)" in text_of(second)
            assert await server.call_tool("add", {"a": 1}) == '{"sum":2}'

    run(scenario())


def processes_of(group_leader):
    """The processes whose parent is this one."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{int(name)}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            if int(fields[1]) == group_leader:
                found.append(int(name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_call_that_is_cancelled_really_ends(file):
    async def scenario():
        async with serving(file) as server:
            process = int(await server.call_tool("where", {}))
            async with asyncio.TaskGroup() as group:
                call = group.create_task(server.call_tool("hang", {}))
                while not processes_of(process):  # noqa: ASYNC110 - another process has no event
                    await asyncio.sleep(0.01)
                call.cancel()
            assert processes_of(process) == []
            assert int(await server.call_tool("where", {})) == process

    run(scenario())


def test_the_process_is_started_again_when_it_has_died(file):
    async def scenario():
        async with serving(file) as server:
            first = await server.call_tool("where", {})
            assert text_of(await server.call_tool("parent", {})) == "The function crashed."
            assert await server.call_tool("where", {}) != first

    run(scenario())


def test_the_servers_own_variables_are_not_in_the_process(file):
    async def scenario():
        os.environ["ANTIPHON_TEST_KEY"] = "sesame"
        try:
            async with serving(file) as server:
                assert await server.call_tool("secrets", {}) == "[]"
        finally:
            del os.environ["ANTIPHON_TEST_KEY"]

    run(scenario())


@pytest.mark.parametrize(
    "source",
    [
        "def broken(:",
        "import nothing_of_that_name",
        "raise SystemExit",
        "import os; os._exit(3)",
        "def no_docstring(a: int): pass",
        "x = 1",
        None,
    ],
)
def test_functions_that_cannot_be_loaded_are_told_without_a_path_and_not_tried_again_at_once(tmp_path, source):
    file = tmp_path / "tools.py"
    if source is not None:
        file.write_text(source)

    async def scenario():
        async with serving(file) as server:
            with pytest.raises(ListingError) as caught:
                await server.list_tools()
            assert caught.value.reason == "they can't be loaded; the operator finds the reason in the server's log"
            answer = await server.call_tool("add", {})
            assert isinstance(answer, McpProtocolError) and answer.message == "The functions can't be called: they can't be loaded now."

    with capture_logs() as logs:
        run(scenario())
    assert "Functions can't be loaded." in [entry["event"] for entry in logs]
    assert RETRY_S > 1


def test_functions_come_from_an_entry_point(tmp_path, monkeypatch):
    package = tmp_path / "weather_tools"
    package.mkdir()
    (package / "__init__.py").write_text(
        textwrap.dedent('''
        def rain(city: str) -> bool:
            """Whether it rains."""
            return city == "Bergen"

        def wind(city: str) -> int:
            """How it blows."""
            return 3

        SOME = [wind]
        ''')
    )
    metadata = tmp_path / "weather_tools-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: weather-tools\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[antiphon.tools]\nweather = weather_tools\none = weather_tools:rain\nsome = weather_tools:SOME\nbad = weather_tools:__name__\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}")

    async def names(entry_point):
        (server,) = function_servers([FunctionsEntry(label="w", entry_point=entry_point)], tmp_path).values()
        try:
            return {each.name for each in await server.list_tools()}
        except ListingError:
            return None
        finally:
            await server.close()

    async def scenario():
        assert await names("weather") == {"rain", "wind"}
        assert await names("one") == {"rain"}
        assert await names("some") == {"wind"}
        assert await names("bad") is None
        assert await names("absent") is None

    run(scenario())


def test_a_relative_file_starts_from_the_folder_that_is_given(file):
    async def scenario():
        (server,) = function_servers([FunctionsEntry(label="m", file=file.name)], file.parent).values()
        assert await server.call_tool("add", {"a": 1}) == '{"sum":2}'
        await server.close()
        with pytest.raises(ListingError):
            await server.list_tools()

    run(scenario())


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("no /etc/passwd here", "no [path] here"),
        ("'/home/op/a b'", "'[path] b'"),
        ("~/.ssh/id", "[path]"),
        ("file:///etc/hosts", "[path]"),
        ("and/or, 3/4, https://a.b/c/d", "and/or, 3/4, https://a.b/c/d"),
    ],
)
def test_paths_are_masked_and_other_texts_stay(text, without):
    assert mask_paths(text) == without
