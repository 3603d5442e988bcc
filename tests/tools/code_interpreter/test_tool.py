"""The tool code_interpreter: items and events, containers, files in and out."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseCodeInterpreterToolCall

from antiphon.config.tools.code_interpreter import CodeInterpreterSettings
from antiphon.engine_api.events import HostedToolDone, HostedToolProgress, HostedToolStarted
from antiphon.engine_api.history import TextPart
from antiphon.errors import ClientError, file_not_found
from antiphon.tool_api import ServerToolCall, ToolOutput
from antiphon.tools.base import ToolContext
from antiphon.tools.code_interpreter.start import start_code_interpreter
from antiphon.tools.code_interpreter.tool import CodeInterpreter, CodeInterpreterKind, OpenUpload, find_input, plain_name, read_code
from antiphon.wire.responses import items, tools as wire_tools
from antiphon.wire.responses.hosted_calls import CodeInterpreterCall


class Library:
    """Uploaded files of one tenant."""

    def __init__(self, files: dict[str, tuple[str, bytes]]) -> None:
        self._files = files

    async def open(self, tenant: str, file_id: str, param: str) -> OpenUpload:
        if tenant != "ann" or file_id not in self._files:
            raise file_not_found(file_id, param)
        name, content = self._files[file_id]

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return OpenUpload(name, chunks())


class House:
    """A server's tool, and a loop to use it in."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        library = Library({"file-1": ("in put.csv", b"a,b\n1,2\n"), "file-2": ("../../x\n.txt", b"2")})
        settings = CodeInterpreterSettings(run_s=20, tenant_kernels=2, kernels=3, disk_mib=4)
        kind, self.words = self.runner.run(start_code_interpreter(settings, folder, library))
        assert kind is not None, self.words
        self.kind: CodeInterpreterKind = kind

    def open(self, container: Any = None, conversation: tuple[items.Item, ...] = (), tenant: str = "ann") -> CodeInterpreter:
        tool = msgspec.convert({"type": "code_interpreter", "container": container or {"type": "auto"}}, wire_tools.CodeInterpreterTool)
        context = ToolContext(response_id="resp_1", tenant=tenant, model="m", items=conversation)
        return self.kind.open([("tools[0]", tool)], context)

    def run(self, tool: CodeInterpreter, code: str) -> tuple[ToolOutput, list[Any]]:
        events: list[Any] = []
        call = ServerToolCall(response_id="resp_1", call_id="call_1", name="python", arguments=json.dumps({"code": code}))
        output = self.runner.run(tool.run(call, events.append))
        assert isinstance(output, ToolOutput)
        return output, events

    def logs(self, tool: CodeInterpreter, code: str) -> str:
        _, events = self.run(tool, code)
        return "".join(each.get("logs", "") for each in events[-1].item["outputs"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("home"))
    yield house
    house.runner.run(house.kind.close())
    house.runner.run(house.kind.close())
    house.runner.close()


def message(*parts: dict[str, Any]) -> items.Message:
    return msgspec.convert({"type": "message", "role": "user", "content": list(parts)}, items.Message)


def text(output: ToolOutput) -> str:
    return "".join(part.text for part in output.parts if isinstance(part, TextPart))


def test_a_call_has_the_originals_item_and_events_in_their_order(house):
    output, events = house.run(house.open(), "print('hi')\n6 * 7")
    started, *progress, done = events
    assert isinstance(started, HostedToolStarted)
    container_id = started.item["container_id"]
    assert started.item == {
        "id": started.id,
        "type": "code_interpreter_call",
        "status": "in_progress",
        "code": "",
        "container_id": container_id,
        "outputs": [],
    }
    assert all(isinstance(each, HostedToolProgress) for each in progress)
    call = "response.code_interpreter_call"
    assert [each.event for each in progress] == [
        {"type": f"{call}.in_progress"},
        {"type": f"{call}_code.delta", "delta": "print('hi')\n6 * 7"},
        {"type": f"{call}_code.done", "code": "print('hi')\n6 * 7"},
        {"type": f"{call}.interpreting"},
        {"type": f"{call}.completed"},
    ]
    assert isinstance(done, HostedToolDone)
    item = ResponseCodeInterpreterToolCall.model_validate(done.item, strict=True)
    assert (item.status, item.container_id) == ("completed", container_id)
    assert done.item["outputs"] == [{"type": "logs", "logs": "hi\n42\n"}]
    assert text(output) == "hi\n42\n"


def test_variables_stay_from_call_to_call_and_from_response_to_response(house):
    tool = house.open()
    assert house.logs(tool, "x = 41") == ""
    _, events = house.run(tool, "x + 1")
    assert events[-1].item["outputs"] == [{"type": "logs", "logs": "42\n"}]
    earlier = msgspec.convert(events[-1].item, CodeInterpreterCall)
    assert house.logs(house.open(conversation=(earlier,)), "x") == "41\n"
    assert house.logs(house.open(earlier.container_id), "x") == "41\n"
    assert "NameError" in house.logs(house.open(), "x")


def test_code_that_raises_is_completed_with_its_traceback(house):
    output, events = house.run(house.open(), "def f():\n    return 1 / 0\nf()")
    assert events[-1].item["status"] == "completed"
    logs = events[-1].item["outputs"][0]["logs"]
    assert logs == text(output)
    assert "return 1 / 0" in logs
    assert logs.endswith("ZeroDivisionError: division by zero\n")
    assert "guest" not in logs
    assert "<string>" not in logs


@pytest.mark.parametrize(
    ("code", "logs"),
    [
        ("None", ""),
        ("1;", ""),
        ("'a'", "'a'\n"),
        ("_ = 3; _", "3\n"),
        ("await __import__('asyncio').sleep(0, 5)", "5\n"),
        ("display(1, 'b')", "1\n'b'\n"),
        ("import sys; print('e', file=sys.stderr)", "e\n"),
        ("__name__", "'__main__'\n"),
        ("class A: pass\nimport pickle; type(pickle.loads(pickle.dumps(A()))).__name__", "'A'\n"),
        ("import os; os.getcwd()", "'/mnt/data'\n"),
        ("input()", "EOFError"),
        ("exit(3)", "SystemExit: 3"),
        ("print('\\udcff')", "\\udcff\n"),
        ("x = (", "SyntaxError"),
        ("import numpy; int(numpy.eye(3).sum())", "3\n"),
        ("import sqlite3, ssl, asyncio, multiprocessing, threading, decimal, zoneinfo; 1", "1\n"),
    ],
)
def test_code_runs_as_in_a_notebook(house, code, logs):
    if not hasattr(house, "shared"):
        house.shared = house.open()
    assert logs in house.logs(house.shared, code)
    assert (logs == "") == (house.logs(house.shared, code) == "")


def test_files_that_code_writes_can_be_cited_and_read(house):
    tool = house.open()
    output, events = house.run(tool, "open('/mnt/data/a b.csv', 'w').write('1,2'); open('plot.png', 'w').close(); None")
    container_id = events[0].item["container_id"]
    assert [(each.marker, each.kind, each.replacement) for each in output.citations] == [
        ("sandbox:/mnt/data/a b.csv", "range", None),
        ("sandbox:/mnt/data/a%20b.csv", "range", None),
        ("sandbox:/mnt/data/plot.png", "range", None),
    ]
    annotation = output.citations[0].annotation
    file_id = annotation["file_id"]
    assert annotation == {"type": "container_file_citation", "container_id": container_id, "file_id": file_id, "filename": "a b.csv"}
    assert "/mnt/data/a b.csv" in text(output)
    containers = house.kind.containers

    async def read() -> bytes:
        _, chunks = await containers.read_file("ann", container_id, file_id)
        return b"".join([chunk async for chunk in chunks])

    assert house.runner.run(read()) == b"1,2"
    output, _ = house.run(tool, "open('a b.csv', 'a').write(',3')")
    assert [each.annotation["file_id"] for each in output.citations] == [file_id, file_id]
    assert house.runner.run(read()) == b"1,2,3"
    output, _ = house.run(tool, "open('a b.csv').read()")
    assert output.citations == ()


def test_files_of_the_request_are_there_for_code_once(house):
    data = base64.b64encode(b"inline").decode()
    said = message(
        {"type": "input_file", "file_data": f"data:text/plain;base64,{data}", "filename": "note.txt"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
        {"type": "input_file", "file_id": "file-2"},
        {"type": "input_file", "file_data": "###", "filename": "broken.txt"},
    )
    tool = house.open({"type": "auto", "file_ids": ["file-1"]}, (said,))
    assert tool.must_prepare
    house.runner.run(tool.prepare(lambda _event: None))
    names = house.logs(tool, "import os; sorted(os.listdir('.'))")
    assert names == "['in put.csv', 'input.png', 'note.txt', 'x_.txt']\n"
    _, events = house.run(tool, "import os; os.remove('note.txt'); open('in put.csv').read()")
    assert events[-1].item["outputs"][0]["logs"] == "'a,b\\n1,2\\n'\n"
    again = house.open(events[0].item["container_id"], (said,))
    assert house.logs(again, "sorted(os.listdir('.'))") == "['in put.csv', 'input.png', 'note.txt', 'x_.txt']\n"


def refusal(house: House, call: Callable[[], object]) -> tuple[int, str | None, str | None]:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.status, caught.value.code, caught.value.param


def test_what_a_request_asks_for_in_vain_is_refused_with_its_place(house):
    assert refusal(house, lambda: house.open("cntr_" + "0" * 48)) == (404, "not_found", "tools[0].container")
    assert refusal(house, lambda: house.open("nonsense")) == (404, "not_found", "tools[0].container")
    other = house.runner.run(house.kind.containers.create("bob", "b"))
    assert refusal(house, lambda: house.open(other.id)) == (404, "not_found", "tools[0].container")
    too_large = {"type": "auto", "memory_limit": "64g"}
    assert refusal(house, lambda: house.open(too_large)) == (400, "unsupported_value", "tools[0].container.memory_limit")
    network = {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["example.com"]}}
    assert refusal(house, lambda: house.open(network)) == (400, "unsupported_value", "tools[0].container.network_policy.type")
    missing = house.open({"type": "auto", "file_ids": ["file-1", "file-9"]})
    assert refusal(house, lambda: house.runner.run(missing.prepare(lambda _event: None))) == (404, None, "tools[0].container.file_ids[1]")
    foreign = house.open({"type": "auto", "file_ids": ["file-1"]}, tenant="bob")
    assert refusal(house, lambda: house.runner.run(foreign.prepare(lambda _event: None)))[0] == 404


def test_a_container_that_no_call_has_used_goes_with_its_response(house):
    containers = house.kind.containers

    async def names() -> set[str]:
        while containers._deletions:
            await asyncio.wait(containers._deletions)
        return {each.id for each in (await containers.list("ann", limit=100)).containers}

    before = house.runner.run(names())
    refused = house.open({"type": "auto", "file_ids": ["file-1", "file-9"]})
    assert refusal(house, lambda: house.runner.run(refused.prepare(lambda _event: None)))[0] == 404
    assert house.runner.run(names()) == before
    ready = house.open({"type": "auto", "file_ids": ["file-1"]})
    house.runner.run(ready.prepare(lambda _event: None))
    named = house.open(house.runner.run(containers.create("ann", "own")).id)
    house.runner.run(named.prepare(lambda _event: None))
    used = house.open()
    _, events = house.run(used, "1")
    assert len(house.runner.run(names()) - before) == 3

    async def close() -> None:
        for tool in (refused, ready, named, used, refused):
            tool.close()

    house.runner.run(close())
    assert house.runner.run(names()) - before == {named._container_id, events[0].item["container_id"]}


def test_an_expired_container_is_an_error_of_the_request_and_auto_makes_a_new_one(house):
    container = house.runner.run(house.kind.containers.create("ann", "short"))
    house.kind.containers._clock, clock = (lambda: clock() + 3600), house.kind.containers._clock
    try:
        assert refusal(house, lambda: house.open(container.id)) == (400, "container_expired", "tools[0].container")
    finally:
        house.kind.containers._clock = clock


@pytest.mark.parametrize(("arguments", "code"), [
    ('{"code": "1"}', "1"), ("print(1)", "print(1)"), ('"print(1)"', "print(1)"), ('{"code": ""}', None), ('{"code": 1}', None),
    ("{}", None), ("[]", None), ("", None), ("[" * 100_000, "[" * 100_000),
    ('{"code": "\\ud800"}', "?"), ('{"code": "' + "x" * 1_000_001 + '"}', None),
])  # fmt: skip
def test_arguments_may_be_anything(arguments, code):
    assert read_code(arguments) == code


def test_arguments_without_code_are_told_to_the_model(house):
    events: list[Any] = []
    call = ServerToolCall(response_id="r", call_id="c", name="python", arguments="{}")
    output = house.runner.run(house.open().run(call, events.append))
    assert isinstance(output, ToolOutput)
    assert "`code`" in text(output)
    assert events == []


@pytest.mark.parametrize(("name", "plain"), [
    ("a.txt", "a.txt"), ("../a", "a"), ("C:\\x\\y.txt", "y.txt"), ("", "file"), ("..", "file"),
    ("a\nb", "a_b"), ("é" * 300, "é" * 100), ("a/", "file"), ("€" * 300 + ".txt", "€" * 65 + ".txt"),
    ("x" * 10_000_000 + ".txt", "x" * 196 + ".txt"),
])  # fmt: skip
def test_names_of_uploads_are_made_plain(name, plain):
    assert plain_name(name) == plain


@pytest.mark.parametrize(("part", "name"), [
    ({"type": "input_image", "image_url": "data:image/png,AAAA"}, "input.png"),
    ({"type": "input_image", "image_url": "data:text/csv;charset=utf-8;base64,AAAA"}, "input.csv"),
    ({"type": "input_file", "file_data": "data:,AAAA"}, "input.bin"),
    ({"type": "input_file", "file_data": "AAAA", "filename": "a/" + "x" * 300 + ".txt"}, "x" * 196 + ".txt"),
])  # fmt: skip
def test_a_file_of_the_input_has_a_short_name_whatever_its_url_is(part, name):
    (copy,) = find_input([message(part)])
    assert copy.filename == name
    assert len(copy.origin) < 300


def test_tenants_share_the_processes_that_there_are(house):
    tools = [house.open() for _ in range(4)]
    for number, tool in enumerate(tools):
        house.run(tool, f"x = {number}")
    output, _ = house.run(tools[3], "x")
    assert text(output) == "3\n"
    output, _ = house.run(tools[0], "x")
    assert text(output).startswith("[The interpreter was restarted")
    assert "NameError" in text(output)
