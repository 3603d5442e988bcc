"""Servers of every transport and age are listed and called; those that are broken end nothing but their call."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from antiphon.tools.mcp.dialing import CommandTarget, DialLimits, HttpTarget, Target
from antiphon.tools.mcp.remote import RemoteServers
from antiphon.tools.mcp.server import CallError, ListingError
from antiphon.wire.responses.hosted_calls import HttpError, McpProtocolError, McpToolExecutionError
from support.tools.mcp_servers import QUICK_COMMAND, STDIO_COMMAND, Servers

T = TypeVar("T")

KINDS = ("streamable-2026", "streamable-2025", "stateless-json", "sse", "sse-elsewhere")
LIMITS = DialLimits(list_s=20, call_s=20, answer_bytes=1 << 20)
IMPATIENT = DialLimits(list_s=0.3, call_s=0.3, answer_bytes=1 << 20)
SECRET = "sk-very-secret-indeed"


async def allow(host: str, _port: int) -> Sequence[str]:
    return [host]


async def refuse(_host: str, _port: int) -> Sequence[str]:
    raise OSError("its address is not public")


def run(use: Callable[[RemoteServers], Awaitable[T]], limits: DialLimits = LIMITS, guard=allow) -> T:
    async def main() -> T:
        dialer = RemoteServers(guard, limits)
        try:
            return await use(dialer)
        finally:
            await dialer.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return asyncio.run(main())


def call(target: Target, name: str, arguments: dict[str, object], limits: DialLimits = LIMITS) -> str | CallError:
    return run(lambda dialer: dialer.connect(target).call_tool(name, arguments), limits)


def listing_error(target: Target, limits: DialLimits = LIMITS, guard=allow) -> ListingError:
    with pytest.raises(ListingError) as caught:
        run(lambda dialer: dialer.connect(target).list_tools(), limits, guard)
    return caught.value


def at(url: str, **headers: str) -> HttpTarget:
    return HttpTarget(url=url, headers=headers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_any_kind_is_listed_and_called(servers: Servers, kind: str):
    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(at(servers.url_by_kind[kind]))
        tools = {tool.name: tool for tool in await server.list_tools()}
        assert tools.keys() == {"add", "boom", "slow", "big", "parts", "files/read it", "count"}
        assert tools["add"].read_only and not tools["boom"].read_only
        assert tools["add"].description == "Add two numbers"
        assert tools["add"].input_schema["required"] == ["a", "b"]
        assert await server.call_tool("add", {"a": 2, "b": 40}) == "42"
        assert await server.call_tool("parts", {}) == "one\n[image/png, 3 bytes]\ninside\ntwo"
        failure = await server.call_tool("boom", {})
        assert isinstance(failure, McpToolExecutionError)
        assert failure.content[0] == {"type": "text", "text": "Error executing tool boom"}
        assert isinstance(await server.call_tool("none", {}), McpToolExecutionError)

    run(use)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_side_by_side_each_get_their_own_answer(servers: Servers, kind: str):
    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(at(servers.url_by_kind[kind]))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(server.call_tool("add", {"a": n, "b": 1})) for n in range(8)]
        assert [task.result() for task in tasks] == [str(n + 1) for n in range(8)]

    run(use)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_over_the_limit_fails_its_call_and_no_other(servers: Servers, kind: str):
    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(at(servers.url_by_kind[kind]))
        failure = await server.call_tool("big", {"n": 3 << 20})
        assert isinstance(failure, HttpError)
        if "sse" not in kind:
            assert failure.message == "Its answer is larger than 1024 KiB (tools.mcp_answer_kib)."
        assert await server.call_tool("add", {"a": 1, "b": 1}) == "2"

    run(use)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "stateless-json"])
def test_a_cancelled_call_is_cancelled_on_the_server(servers: Servers, kind: str):
    notes = servers.notes
    notes.started.clear()
    notes.cancelled.clear()

    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(at(servers.url_by_kind[kind]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(server.call_tool("slow", {"seconds": 60}))
            await asyncio.to_thread(notes.started.wait, 20)
            task.cancel()
        assert await server.call_tool("add", {"a": 1, "b": 1}) == "2"
        assert await asyncio.to_thread(notes.cancelled.wait, 20)

    run(use)


def test_two_connections_have_two_sessions_and_one_has_its_own_from_call_to_call(servers: Servers):
    def sessions(first: int) -> set[str]:
        return {headers["mcp-session-id"] for headers in servers.notes.headers[first:] if "mcp-session-id" in headers}

    async def use(dialer: RemoteServers) -> None:
        first = len(servers.notes.headers)
        server, other = (dialer.connect(at(servers.url_by_kind["streamable-2025"])) for _ in range(2))
        await server.call_tool("add", {"a": 1, "b": 1})
        await server.call_tool("add", {"a": 1, "b": 1})
        assert len(sessions(first)) == 1
        await other.call_tool("add", {"a": 1, "b": 1})
        assert len(sessions(first)) == 2

    run(use)
    assert "DELETE" in servers.notes.methods


def test_a_session_that_the_server_forgot_is_begun_anew(servers: Servers):
    async def use(dialer: RemoteServers) -> None:
        first = len(servers.notes.headers)
        server = dialer.connect(at(servers.url_by_kind["streamable-2025"]))
        assert await server.call_tool("add", {"a": 1, "b": 1}) == "2"
        session_id = next(headers["mcp-session-id"] for headers in servers.notes.headers[first:] if "mcp-session-id" in headers)
        host = servers.url_by_kind["streamable-2025"].split("/")[2]
        reader, writer = await asyncio.open_connection(*host.split(":"))
        request = f"DELETE /mcp HTTP/1.1\r\nhost: {host}\r\nmcp-session-id: {session_id}\r\nconnection: close\r\n\r\n"
        writer.write(request.encode())
        assert b" 200 " in await reader.readline()
        writer.close()
        assert await server.call_tool("add", {"a": 2, "b": 2}) == "4"

    run(use)


def test_an_idle_session_ends_and_the_next_call_begins_another(servers: Servers):
    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(at(servers.url_by_kind["streamable-2025"]))
        assert await server.call_tool("add", {"a": 1, "b": 1}) == "2"
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert await server.call_tool("add", {"a": 1, "b": 2}) == "3"

    run(use, DialLimits(idle_s=0.05))


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("401", 401, "refused the connection"),
        ("404", 404, "refused the connection"),
        ("500", 500, "refused the connection"),
        ("moved", 307, "refused the connection"),
        ("html", None, "does not speak the Model Context Protocol"),
        ("huge", None, "larger than 1024 KiB"),
        ("hugestream", None, "larger than 1024 KiB"),
        ("packed", None, "is compressed"),
        ("crowd", None, "more than 10000 parts"),  # of what the session begins with
        ("cut", None, "broke the connection in the middle"),
    ],
)
def test_a_broken_server_can_not_be_listed(servers: Servers, path: str, status: int | None, reason: str):
    error = listing_error(at(f"{servers.broken.url}/{path}"))
    assert error.status == status and reason in error.reason


@pytest.mark.parametrize("path", ["hang", "loris"])
def test_a_slow_server_is_given_up_at_the_limit(servers: Servers, path: str):
    assert (
        listing_error(at(f"{servers.broken.url}/{path}"), IMPATIENT).reason
        == "it did not list its tools within 0.3 seconds (tools.mcp_list_s)"
    )
    failure = call(at(f"{servers.broken.url}/late/{path}"), "add", {}, DialLimits(call_s=1))
    assert failure == HttpError(code=504, message="The server did not answer within 1 seconds (tools.call_s).")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("401", HttpError(code=401, message="401 (Unauthorized)")),
        ("500", HttpError(code=500, message="500 (Internal Server Error)")),
        ("404", HttpError(code=404, message="404 (Not Found)")),
        ("moved", HttpError(code=307, message="The server redirects to another place, which is not followed.")),
        ("huge", HttpError(code=502, message="Its answer is larger than 1024 KiB (tools.mcp_answer_kib).")),
        ("packed", HttpError(code=502, message="Its answer is compressed, although that was not requested.")),
        ("crowd", HttpError(code=502, message="Its answer has more than 10000 parts.")),
        ("cut", HttpError(code=502, message="The server broke the connection in the middle of its answer.")),
        ("html", McpProtocolError(code=-32600, message="Unexpected content type: text/html")),
        ("nonsense", McpProtocolError(code=-32600, message="The server's answer is not as the protocol has it.")),
        ("error", McpProtocolError(code=-32042, message="not today")),
        ("bigcode", McpProtocolError(code=-32603, message="not today")),
        ("torn", McpProtocolError(code=-32700, message="The server's answer is not as the protocol has it.")),
    ],
)
def test_a_server_that_breaks_later_fails_the_call_with_the_errors_type(servers: Servers, path: str, error: CallError):
    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(at(f"{servers.broken.url}/late/{path}"))
        assert [tool.name for tool in await server.list_tools()] == ["add"]
        assert await server.call_tool("add", {}) == error

    run(use)
    calls = [method for seen_path, method in servers.broken.seen if seen_path == f"/late/{path}" and method == "tools/call"]
    assert len(calls) == 1  # its outcome is unknown, so it is never sent again


def test_a_server_that_sends_requests_all_the_time_is_left(servers: Servers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("antiphon.tools.mcp.transport.MAX_ANSWERS", 5)
    failure = call(at(f"{servers.broken.url}/late/asker"), "add", {}, DialLimits(call_s=60))
    assert failure == HttpError(code=502, message="It sent more than 5 requests of its own.")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("longlist", "its answer is larger than 1024 KiB (tools.mcp_answer_kib)"),
        ("tornlist", "The server's answer is not as the protocol has it."),
    ],
)
def test_a_list_that_can_not_be_read_says_why_in_own_words(servers: Servers, path: str, reason: str):
    error = listing_error(at(f"{servers.broken.url}/late/{path}"))
    assert (error.status, error.reason) == (None, reason)


def test_a_redirect_to_another_origin_carries_no_credentials_there(servers: Servers):
    first = len(servers.notes.headers)
    listing_error(at(f"{servers.broken.url}/moved", authorization=f"Bearer {SECRET}"))
    call(at(f"{servers.broken.url}/late/moved", authorization=f"Bearer {SECRET}"), "add", {})
    assert servers.notes.headers[first:] == []


def test_a_server_that_is_not_there_is_told_without_its_address():
    assert listing_error(at("http://127.0.0.1:9/mcp?key=abc")).reason == "the server could not be reached"
    failure = call(at("http://127.0.0.1:9/mcp?key=abc"), "add", {})
    assert failure == HttpError(code=502, message="The server failed: the server could not be reached.")


def test_a_guard_that_refuses_keeps_every_packet_here(servers: Servers):
    first = len(servers.notes.headers)
    for kind in KINDS:
        assert listing_error(at(servers.url_by_kind[kind]), guard=refuse).reason == "its address is not public"
    assert servers.notes.headers[first:] == []


def test_the_operators_servers_are_not_judged_and_their_connections_are_used_for_no_other(servers: Servers):
    url = servers.url_by_kind["streamable-2026"]

    async def use(dialer: RemoteServers) -> None:
        own = dialer.connect(HttpTarget(url=url, headers={}, is_own=True))
        assert await own.call_tool("add", {"a": 1, "b": 1}) == "2"
        with pytest.raises(ListingError, match="not public"):
            await dialer.connect(at(url)).list_tools()

    run(use, guard=refuse)


def test_a_name_is_resolved_once_by_the_guard_and_the_connection_goes_where_it_says(servers: Servers):
    asked = []

    async def pin(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["127.0.0.1"]

    port = int(servers.broken.url.rpartition(":")[2])
    url = f"http://tools.example:{port}/late/echo"
    text = run(lambda dialer: dialer.connect(at(url)).call_tool("add", {}), guard=pin)
    assert isinstance(text, str) and f'"host": "tools.example:{port}"' in text
    assert {*asked} == {("tools.example", port)}


def test_a_proxy_of_the_environment_is_not_used(servers: Servers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert call(at(servers.url_by_kind["streamable-2026"]), "add", {"a": 1, "b": 1}) == "2"


@pytest.mark.parametrize("path", ["echo", "echoerror"])
def test_headers_reach_the_server_and_credentials_do_not_come_back(servers: Servers, path: str):
    outcome = call(at(f"{servers.broken.url}/late/{path}", authorization=f"Bearer {SECRET}", **{"x-team": "blue"}), "add", {})
    text = outcome if isinstance(outcome, str) else outcome.content[0]["text"] if isinstance(outcome, McpToolExecutionError) else ""
    assert '"x-team": "blue"' in text and SECRET not in text
    assert servers.broken.last_headers["authorization"] == f"Bearer {SECRET}"


def test_nothing_of_a_request_is_logged(servers: Servers, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]):
    with caplog.at_level(logging.DEBUG):
        target = at(f"{servers.url_by_kind['streamable-2025']}?key={SECRET}", authorization=SECRET)
        assert call(target, "add", {"a": 1, "b": 2}) == "3"
        call(at(f"http://127.0.0.1:9/?key={SECRET}"), "add", {"a": SECRET})
        call(at(f"{servers.broken.url}/late/nonsense?key={SECRET}", authorization=SECRET), "add", {"a": SECRET})
    own_names = ("antiphon", "mcp", "httpx2", "httpcore2", "asyncio")  # the test's servers log too, but others
    assert not [record for record in caplog.records if record.name.startswith(own_names) and SECRET in record.getMessage()]
    assert SECRET not in "".join(capfd.readouterr())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "type", "text", "isError", "structuredContent", "resultType", "result", "error"]), inner
        )
    ),
    max_leaves=8,
)
results = values | st.fixed_dictionaries(
    {"content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": values}) | values, max_size=3)}
)
answers = st.one_of(
    results.map(lambda result: {"jsonrpc": "2.0", "id": "?", "result": result}),
    values.map(lambda error: {"jsonrpc": "2.0", "id": "?", "error": error}),
    values,
)
bodies = answers.map(lambda answer: json.dumps(answer).encode()) | st.binary(max_size=30)


@pytest.mark.parametrize("path", ["raw", "rawstream"])
@given(raw_bodies=st.lists(bodies, min_size=8, max_size=8))
@settings(
    max_examples=settings.default.max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_a_server_answers_a_call_ends_with_a_text_or_an_error(servers: Servers, path: str, raw_bodies: list[bytes]):
    framed = [b"event: message\ndata: " + body + b"\n\n" if path == "rawstream" else body for body in raw_bodies]

    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(at(f"{servers.broken.url}/late/{path}"))
        await server.list_tools()
        servers.broken.raw_bodies = framed
        for _ in raw_bodies:
            outcome = await server.call_tool("add", {})
            assert isinstance(outcome, str | HttpError | McpProtocolError | McpToolExecutionError)

    run(use, DialLimits(call_s=0.5))


# Programs


def child(**fields: object) -> CommandTarget:
    return CommandTarget(**{"label": "child", "command": STDIO_COMMAND, "env": {}} | fields)  # type: ignore[arg-type]


def test_a_program_is_a_server_with_a_process_for_each_connection_that_ends_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTIPHON_SECRET", SECRET)
    target = child(env={"TEAM": "blue", "API_KEY": SECRET}, processes=1)

    async def use(dialer: RemoteServers) -> int:
        server = dialer.connect(target)
        assert {tool.name for tool in await server.list_tools()} == {"pid", "variable"}
        pid = await server.call_tool("pid", {})
        assert isinstance(pid, str) and pid == await server.call_tool("pid", {})
        assert await server.call_tool("variable", {"name": "TEAM"}) == "blue"
        assert await server.call_tool("variable", {"name": "API_KEY"}) == "***"
        assert await server.call_tool("variable", {"name": "ANTIPHON_SECRET"}) == "nothing"
        busy = await dialer.connect(target).call_tool("pid", {})
        assert isinstance(busy, HttpError) and busy.code == 503 and "tools.mcp[].processes" in busy.message
        return int(pid)

    assert not Path(f"/proc/{run(use)}").exists()


def test_a_program_that_dies_or_says_too_much_fails_its_call_and_is_started_again():
    async def use(dialer: RemoteServers) -> None:
        server = dialer.connect(child(command=QUICK_COMMAND))
        first = await server.call_tool("pid", {})
        assert await server.call_tool("die", {}) == HttpError(code=502, message="The server broke the connection.")
        second = await server.call_tool("pid", {})
        too_much = await server.call_tool("big", {})
        assert too_much == HttpError(code=502, message="Its answer is larger than the limit (tools.mcp_answer_kib).")
        assert len({first, second, await server.call_tool("pid", {})}) == 3

    run(use)


def test_a_session_that_nobody_waits_for_any_more_is_not_opened(servers: Servers):
    targets = (at(f"{servers.broken.url}/hang"), child(command=("sleep", "60")))

    async def use(dialer: RemoteServers) -> None:
        for target in targets:
            server = dialer.connect(target)
            for _ in range(2):
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(server.list_tools()) for _ in range(2)]
                    for _ in range(20):  # so that both wait
                        await asyncio.sleep(0)
                    for task in tasks:
                        task.cancel()
            server.close()

    run(use)


def test_a_program_that_can_not_be_started_is_told_without_its_path():
    assert listing_error(child(command=("/nowhere/program",))).reason == "it could not be started"
    assert listing_error(child(command=("true",))).reason == "it refused the connection, or does not speak the Model Context Protocol"
