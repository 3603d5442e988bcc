"""A conversation of nothing but text takes a shorter way to the engine, and arrives as it would by the long one."""

import msgspec
import pytest
from msgspec import structs

from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError
from antiphon.protocols.responses.history import is_plain_message
from antiphon.protocols.responses.request import CHECKED_FIELDS, CHECKS, ResolvedRequest, engine_request
from antiphon.tool_api import ServerTools
from antiphon.wire.responses.request import decode_request

ABLE = Capabilities(tools=True, custom_tools=True, temperature=True, top_p=True, penalties=True, max_top_logprobs=20, compacts=True)
UNABLE = Capabilities(temperature=False, top_p=False)

TURNS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "One"}, {"type": "input_text", "text": " and two."}]},
    {"role": "assistant", "content": "Three.", "phase": "commentary"},
    {"role": "user", "content": []},
    {"role": "user", "content": ""},
]
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}

REQUESTS = [
    {"input": "Hi"},
    {"input": ""},
    {"input": []},
    {"input": TURNS},
    {"input": TURNS, "instructions": "Count.", "temperature": 0.0, "top_p": 0.5, "presence_penalty": 1.0, "frequency_penalty": None},
    {"input": "Hi", "temperature": 1, "top_p": 1, "top_logprobs": 20},
    {"input": "Hi", "include": ["message.output_text.logprobs"]},
    {"input": "Hi", "temperature": 0.5},
    {"input": "Hi", "tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
    {"input": "Hi", "tools": [{**FUNCTION, "defer_loading": True}, {"type": "tool_search"}]},
    {"input": "Hi", "tools": [{"type": "web_search"}]},
    {"input": "Hi", "tool_choice": "required"},
    {"input": "Hi", "tool_choice": {"type": "function", "name": "f"}},
    {"input": TURNS, "context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    {"input": "Hi", "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}, "max_output_tokens": 16},
    {"input": "Hi", "top_k": 3, "stream": True, "truncation": "auto"},
]


@pytest.mark.parametrize(
    "capabilities", [ABLE, structs.replace(ABLE, compacts=False, max_top_logprobs=5), UNABLE], ids=["able", "not compacting", "unable"]
)
@pytest.mark.parametrize("fields", REQUESTS, ids=str)
@pytest.mark.parametrize("types", [(), ("web_search",)], ids=["no tools here", "a tool here"])
def test_the_short_way_ends_where_the_long_one_does(fields, types, capabilities):
    request = decode_request(msgspec.json.encode(fields))
    assert all(map(is_plain_message, request.input_items))
    server_tools = ServerTools(types=frozenset(types))
    short, long = (translation(request, capabilities, server_tools, is_plain=is_plain) for is_plain in (True, False))
    assert short == long


def test_a_request_without_the_fields_that_are_checked_passes_every_check():
    class Absent:
        """A request that has nothing, and notes what is looked at."""

        def __init__(self):
            self.seen = set()

        def __getattr__(self, name):
            self.seen.add(name)
            return msgspec.UNSET

    for capabilities in (ABLE, UNABLE, Capabilities()):
        absent = Absent()
        for check in CHECKS:
            check(absent, capabilities, "m")
        assert absent.seen <= {*CHECKED_FIELDS}


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "compaction_trigger"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Three.", "annotations": []}]},
    ],
    ids=str,
)
def test_all_that_is_more_than_a_clients_text_takes_the_long_way(item):
    (read,) = decode_request(msgspec.json.encode({"input": [item]})).input_items
    assert not is_plain_message(read)


def translation(request, capabilities, server_tools, *, is_plain):
    resolved_request = ResolvedRequest(
        id="resp_1",
        tenant="t",
        created_at=1,
        model="m",
        request=request,
        capabilities=capabilities,
        input_items=tuple(request.input_items),
        is_plain=is_plain,
        server_tools=server_tools,
    )
    try:
        made = engine_request(resolved_request)
    except ClientError as error:
        return error.body()
    search = made.finding.search
    return repr(structs.replace(made, finding=structs.replace(made.finding, search=None))), search is None
