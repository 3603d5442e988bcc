"""What a conversation with other tools' items becomes for an engine that knows none of them."""

import msgspec
import pytest

from antiphon.engine_api import history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError
from antiphon.protocols.omissions import Omissions
from antiphon.protocols.responses.history import to_history
from antiphon.protocols.responses.tools import TranslationContext
from antiphon.wire.responses.items import decode_item


def told(*written, carries=True, **capabilities):
    """The history of items, and the types of those that are left out."""
    left_out = Omissions()
    terms = TranslationContext(Capabilities(**capabilities), "m", carries, left_out)
    located = [(f"input[{index}]", decode_item(msgspec.json.encode(each))) for index, each in enumerate(written)]
    return to_history(located, terms), left_out.items


def result(call_id, text):
    return history.ToolResult(call_id, (history.TextPart(text),))


EXEC = {"type": "exec", "command": ["ls", "-l"], "env": {}}
LOCAL_SHELL = {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": EXEC, "status": "completed"}
LS = history.ToolCall("call_1", "local_shell", '{"command":["ls","-l"],"env":{}}')


@pytest.mark.parametrize(
    "output",
    [
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "a.txt"},
        {"type": "local_shell_call_output", "id": "call_1", "output": "a.txt"},
        {"type": "local_shell_call_output", "call_id": "call_1", "output": "a.txt"},
        {"type": "local_shell_call_output", "id": "lsh_of_its_own", "call_id": "call_1", "output": "a.txt"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
    ],
)
def test_a_local_shells_command_is_a_call_whichever_way_its_output_names_it(output):
    assert told(LOCAL_SHELL, output) == ((LS, result("call_1", "a.txt")), [])


@pytest.mark.parametrize("name", [{}, {"id": "lsh_1", "call_id": "call_2"}])
def test_a_local_shells_output_that_names_no_call_is_refused(name):
    with pytest.raises(ClientError, match="No tool call found for local shell call output with call_id"):
        told(LOCAL_SHELL, {"type": "local_shell_call_output", "output": "a.txt", **name})


EXIT = {"stdout": "hi\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
PATCHED = {"type": "update_file", "path": "a.py", "diff": "@@"}
CLICK = {"type": "click", "button": "left", "x": 1, "y": 2}
SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"}
PAIRS = {
    "shell": (
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["echo hi"]}},
        {"type": "shell_call_output", "call_id": "c", "output": [EXIT]},
        history.ToolCall("c", "shell", '{"commands":["echo hi"]}'),
        '{"outcome":{"type":"exit","exit_code":0},"stderr":"","stdout":"hi\\n"}',
    ),
    "patch": (
        {"type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": PATCHED},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
        history.ToolCall("c", "apply_patch", '{"type":"update_file","diff":"@@","path":"a.py"}'),
        "failed",
    ),
    "tool search": (
        {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "mail"}},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function", "name": "send"}]},
        history.ToolCall("c", "tool_search", '{"query":"mail"}'),
        "Tools found: send.",
    ),
    "computer": (
        {"type": "computer_call", "id": "cu_1", "call_id": "c", "pending_safety_checks": [], "status": "completed", "action": CLICK},
        {"type": "computer_call_output", "call_id": "c", "output": SCREEN},
        history.ToolCall("c", "computer", '{"action":{"type":"click","button":"left","x":1,"y":2}}'),
        "Done. The screenshot can't be shown here.",
    ),
    "program": (
        {"type": "program", "id": "pr_1", "call_id": "c", "code": "x = 1", "fingerprint": "f"},
        {"type": "program_output", "id": "po_1", "call_id": "c", "result": "1", "status": "completed"},
        history.ToolCall("c", "program", '{"code":"x = 1"}'),
        "1",
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_a_tools_call_and_output_are_told_as_any_other(what):
    called, output, call, text = PAIRS[what]
    assert told(called, output) == ((call, result("c", text)), [])


WHOLES = {
    "mcp": (
        {"type": "mcp_call", "id": "mcp_1", "name": "find", "server_label": "gh", "arguments": "{}", "output": "two"},
        history.ToolCall("mcp_1", "find", "{}", namespace="gh"),
        "two",
    ),
    "mcp that failed": (
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "name": "f",
            "server_label": "gh",
            "arguments": "",
            "error": {"type": "http_error", "code": 500, "message": "x"},
        },
        history.ToolCall("mcp_1", "f", "", namespace="gh"),
        "The call failed: x",
    ),
    "code": (
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "code": "print(1)",
            "container_id": "co",
            "status": "completed",
            "outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "url": "http://x"}],
        },
        history.ToolCall("ci_1", "python", '{"code":"print(1)"}'),
        "1\n(a picture)",
    ),
    "file search": (
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed", "results": [{"text": "found"}]},
        history.ToolCall("fs_1", "file_search", '{"queries":["q"]}'),
        '[{"text":"found"}]',
    ),
    "web search": (
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "q", "sources": [{"type": "url", "url": "https://a.example"}]},
        },
        history.ToolCall("ws_1", "web_search", '{"queries":["q"]}'),
        "Found:\nhttps://a.example",
    ),
    "open page": (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "open_page", "url": "https://a.example"}},
        history.ToolCall("ws_1", "open_page", '{"url":"https://a.example"}'),
        "Read.",
    ),
    "find in page": (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "find_in_page", "url": "u", "pattern": "p"}},
        history.ToolCall("ws_1", "find_in_page", '{"url":"u","pattern":"p"}'),
        "Done.",
    ),
    "image": (
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AA", "revised_prompt": "a cat"},
        history.ToolCall("ig_1", "image_generation", '{"prompt":"a cat"}'),
        "The image was made, and the user sees it.",
    ),
    "no image": (
        {"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": None},
        history.ToolCall("ig_1", "image_generation", '{"prompt":""}'),
        "No image was made.",
    ),
}


@pytest.mark.parametrize("what", WHOLES)
def test_an_item_that_has_its_own_result_is_told_as_a_call_with_it(what):
    item, call, text = WHOLES[what]
    assert told(item) == ((call, result(call.call_id, text)), [])


@pytest.mark.parametrize(
    "item",
    [
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed"},
        {"type": "tool_search_call", "arguments": {}},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "gh", "tools": []},
        {"type": "ghost_snapshot", "ghost_commit": {}},
    ],
)
def test_an_item_without_anything_to_tell_is_left_out_by_name_or_refused(item):
    assert told(item) == ((), [item["type"]])
    with pytest.raises(ClientError) as refused:
        told(item, carries=False)
    assert (refused.value.code, refused.value.param) == ("unsupported_value", "input[0]")


def test_a_compacted_conversation_is_not_told_without_what_was_compacted():
    with pytest.raises(ClientError):
        told({"type": "compaction", "encrypted_content": "AA"})


def test_an_engine_with_the_tool_is_given_the_item_as_it_is():
    output = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}
    assert told(LOCAL_SHELL, output, hosted=("local_shell",)) == ((history.HostedToolItem(LOCAL_SHELL), result("call_1", "a.txt")), [])


def test_a_screenshot_is_shown_to_a_model_that_sees():
    called, output, *_ = PAIRS["computer"]
    assert told(called, output, images=True)[0][1] == history.ToolResult("c", (history.ImagePart("data:image/png;base64,AA"),))


@pytest.mark.parametrize("name", PAIRS)
def test_an_output_without_its_call_is_refused_by_its_kind(name):
    _, output, *_ = PAIRS[name]
    kind = output["type"].replace("_", " ")
    with pytest.raises(ClientError, match=f"^No tool call found for {kind} with call_id {output['call_id']}\\.$"):
        told(output)


def test_a_call_of_another_tool_without_its_output_is_refused_as_any_other():
    with pytest.raises(ClientError, match="No tool output found for local shell call call_1"):
        told(LOCAL_SHELL)
