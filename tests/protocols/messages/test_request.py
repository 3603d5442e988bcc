"""What an engine gets of a request for a message."""

import base64
import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import FunctionTool, JsonSchema, ToolChoice
from antiphon.errors import ClientError
from antiphon.protocols.messages.request import ResolvedMessagesRequest, clamp_max_tokens, messages_engine_request
from antiphon.protocols.messages.thinking import SignedThinking, sign_thinking
from antiphon.wire.messages.request import decode_messages_request

ALL = Capabilities(
    images=True, files=True, tools=True, json_schema=True, efforts=("none", "low", "medium", "high"), encrypts_reasoning=True
)
TEXT = Capabilities()
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
PDF = base64.b64encode(b"%PDF-1.7 ...").decode()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def translated(*messages, capabilities=ALL, unsign=lambda _signature: None, omit=True, **fields):
    told = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages or ("Hi",)]
    body = json.dumps({"model": "m", "max_tokens": 99, "messages": told, **fields}).encode()
    request = decode_messages_request(body)
    return messages_engine_request(
        ResolvedMessagesRequest(id="msg_1", model="m", request=request, capabilities=capabilities, unsign=unsign, omit_unsupported=omit)
    )


def respond(*messages, **fields):
    return translated(*messages, **fields).respond


def user(*content):
    return {"role": "user", "content": list(content)}


def assistant(*content):
    return {"role": "assistant", "content": list(content)}


def says(text):
    return {"type": "text", "text": text}


def refused(*messages, **fields):
    with pytest.raises(ClientError) as refusal:
        translated(*messages, **fields)
    assert refusal.value.status == 400
    return refusal.value


def test_text_may_come_plain_or_in_blocks():
    assert respond("Hi").history == respond(user(says("Hi"))).history == (history.Message("user", (history.TextPart("Hi"),)),)


def test_a_system_message_stays_where_it_stands():
    roles = [item.role for item in respond("Hi", {"role": "system", "content": "Be brief."}, user(says("there"))).history]
    assert roles == ["user", "system", "user"]


def test_blocks_of_the_system_prompt_are_apart_and_the_billing_header_is_none():
    billing = says("x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;")
    assert respond(system=[billing, says("One."), says("Two.")]).instructions == "One.\n\nTwo."
    assert respond(system="One.").instructions == "One."
    assert respond(system=[billing]).instructions is None


def test_a_call_and_its_result_find_each_other():
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [says("done")], "cache_control": {"type": "ephemeral"}}
    items = respond("Hi", assistant(says("I call."), use), user(result, says("And now?"))).history
    assert items[1:] == (
        history.Message("assistant", (history.TextPart("I call."),)),
        history.ToolCall("toolu_1", "f", '{"a":1}'),
        history.ToolResult("toolu_1", (history.TextPart("done"),)),
        history.Message("user", (history.TextPart("And now?"),)),
    )


@pytest.mark.parametrize("content", [{}, {"content": ""}, {"content": []}, {"content": None}])
def test_a_result_may_be_empty(content):
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    items = respond("Hi", assistant(use), user({"type": "tool_result", "tool_use_id": "t", **content})).history
    assert items[-1] == history.ToolResult("t", (history.TextPart(""),))


def test_a_tool_that_failed_is_told_as_one():
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no such file", "is_error": True}
    parts = respond("Hi", assistant(use), user(result)).history[-1].parts
    assert "".join(part.text for part in parts) == "The tool reported an error:\nno such file"


def test_a_result_of_no_call_is_refused():
    error = refused(user({"type": "tool_result", "tool_use_id": "gone", "content": "x"}))
    assert "unexpected `tool_use_id`" in error.message and error.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("assistant", {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}),
        ("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        ("user", {"type": "thinking", "thinking": "Hm.", "signature": "s"}),
        ("system", {"type": "tool_result", "tool_use_id": "t"}),
    ],
)
def test_a_block_of_another_role_is_refused(role, block):
    assert refused("Hi", {"role": role, "content": [block]}, "Hi").param == "messages[1].content[0]"


def test_an_image_comes_inline_or_by_url():
    inline = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PNG}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    parts = respond(user(inline, linked)).history[0].parts
    assert parts == (history.ImagePart(f"data:image/png;base64,{PNG}"), history.ImagePart("https://example.com/a.png"))


def test_what_is_no_image_is_never_passed_on_as_one():
    fake = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"text").decode()}}
    assert refused(user(fake)).param == "messages[0].content[0].source"
    assert refused(user({"type": "image", "source": {"type": "ftp", "url": "x"}})).param == "messages[0].content[0].source.type"
    assert refused(user(fake), capabilities=TEXT).code == "unsupported_parameter"


@pytest.mark.parametrize("kind", ["image", "document"])
def test_a_path_is_no_url(kind):
    error = refused(user({"type": kind, "source": {"type": "url", "url": "/etc/passwd"}}))
    assert (error.code, error.param) == ("invalid_url", "messages[0].content[0].source.url")


def test_a_schema_that_is_none_is_refused_where_the_model_is_held_to_it():
    strange = {"type": "object", "properties": {"city": {"type": "strin"}}}
    tool = {"name": "weather", "input_schema": strange}
    assert respond(tools=[tool]).tools
    assert refused(tools=[tool | {"strict": True}]).param == "tools[0].input_schema"
    assert refused(output_config={"format": {"type": "json_schema", "schema": strange}}).param == "output_config.format.schema"


def test_documents_are_files_or_texts():
    pdf = {"type": "document", "title": "Paper", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
    plain = {"type": "document", "title": 'The "a"', "source": {"type": "text", "media_type": "text/plain", "data": "Hello"}}
    mixed = {"type": "document", "context": "Mind it.", "source": {"type": "content", "content": [says("one"), says("two")]}}
    parts = respond(user(pdf, plain, mixed)).history[0].parts
    assert parts[0] == history.FilePart(inline=f"data:application/pdf;base64,{PDF}", filename="Paper")
    assert [part.text for part in parts[1:]] == ["<document title=\"The 'a'\">\nHello\n</document>\n", "Mind it.", "one", "two"]
    assert "takes no documents of type 'application/pdf'" in refused(user(pdf), capabilities=TEXT).message


def test_search_results_are_text_with_their_source():
    block = {"type": "search_result", "source": "https://x", "title": "X", "content": [says("one"), says("two")]}
    assert respond(user(block)).history[0].parts[0].text == '<search_result title="X" source="https://x">\none\ntwo\n</search_result>\n'


def test_what_tools_of_other_servers_left_is_omitted_by_name():
    left = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "content": []}]
    result = translated("Hi", assistant(*left, says("Found.")), "More")
    assert result.omissions.items == ["server_tool_use", "web_search_tool_result"]
    assert refused("Hi", assistant(*left), "More", omit=False).param == "messages[1].content[0].type"


def test_tools_of_the_client_are_functions():
    tools = [{"name": "weather", "description": "Tells it", "input_schema": SCHEMA, "strict": True, "cache_control": {"type": "ephemeral"}}]
    assert respond(tools=tools).tools == (FunctionTool("weather", "Tells it", SCHEMA, True),)
    assert respond(tools=[{"type": "custom", "name": "w", "input_schema": SCHEMA}]).tools[0].name == "w"


@pytest.mark.parametrize(
    ("type", "name", "field"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "new_path"),
        ("computer_20251124", "computer", "coordinate"),
    ],
)
def test_tools_whose_schema_the_originals_models_know_get_it_here(type, name, field):
    tool = respond(tools=[{"type": type, "name": name, "display_width_px": 800, "display_height_px": 600}]).tools[0]
    assert tool.name == name and field in tool.parameters["properties"]
    assert ("800 x 600" in tool.description) is True


def test_tools_that_the_originals_servers_run_are_left_out_unless_one_must_be_called():
    search = {"type": "web_search_20260318", "name": "web_search"}
    result = translated(tools=[search, {"name": "f", "input_schema": SCHEMA}])
    assert [tool.name for tool in result.respond.tools] == ["f"] and result.omissions.tools == ["web_search_20260318"]
    error = refused(tools=[{"name": "f", "input_schema": SCHEMA}, search], tool_choice={"type": "tool", "name": "web_search"})
    assert error.param == "tools[1]" and "'web_search_20260318' is not supported" in error.message
    assert refused(tools=[search], omit=False).param == "tools[0]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": SCHEMA}] * 2}, "tools[1].name"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format.type"),
        ({"model": ""}, "model"),
    ],
)
def test_a_mistake_is_refused_by_name(fields, param):
    assert refused(**fields).param == param


def test_an_answer_can_not_be_begun_by_the_client():
    assert "prefill" in refused("Hi", assistant(says("I"))).message


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "f"}, ToolChoice("required", ("f",))),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_the_choice_of_tools(choice, expected):
    tools = [{"name": "f", "input_schema": SCHEMA}]
    assert respond(tools=tools, tool_choice=choice).tool_choice == expected
    assert respond(tools=tools, tool_choice=choice).parallel_tool_calls
    if choice["type"] != "none":
        assert not respond(tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True}).parallel_tool_calls


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}, "medium"),
        ({"output_config": {"effort": "max"}}, "high"),
    ],
)
def test_thinking_is_an_effort(fields, effort):
    assert respond(**fields).reasoning_effort == effort
    assert respond(capabilities=TEXT, **fields).reasoning_effort is None


def test_less_effort_than_a_model_has_is_its_least_and_never_none():
    assert respond(capabilities=Capabilities(efforts=("none", "high")), output_config={"effort": "low"}).reasoning_effort == "high"
    assert respond(capabilities=Capabilities(efforts=("low",)), thinking={"type": "disabled"}).reasoning_effort is None


def test_sampling_and_format():
    told = respond(
        temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["END"], output_config={"format": {"type": "json_schema", "schema": SCHEMA}}
    )
    assert (told.sampling.temperature, told.sampling.top_p, told.sampling.max_tokens) == (0.5, 0.9, 99)
    assert told.sampling.extra == {"top_k": 40, "stop": ["END"]}
    assert told.format == JsonSchema("output", SCHEMA, strict=True)


def test_fields_that_mean_nothing_here_are_no_mistake():
    odd = {"context_management": {"edits": []}, "metadata": {"user_id": "x"}, "service_tier": "auto", "container": None, "speed": "fast"}
    assert respond(**odd, cache_control={"type": "ephemeral"}).sampling.extra == {}


def test_max_tokens_is_cut_to_what_the_window_has_room_for():
    asked = respond(max_tokens=64_000)
    assert clamp_max_tokens(asked, 32_768, 20_000).sampling.max_tokens == 12_768
    assert clamp_max_tokens(asked, 32_768, 40_000).sampling.max_tokens == 1
    assert clamp_max_tokens(asked, None, 20_000) is asked
    assert respond(max_tokens=2**40).sampling.max_tokens == 2**31 - 1


# Reasoning that comes back

VAULT: dict[str, bytes] = {}


def sign(content):
    VAULT[f"sig{len(VAULT)}"] = content
    return f"sig{len(VAULT) - 1}"


@given(text=st.text(max_size=20), engine_form=st.none() | st.text(min_size=1, max_size=9), is_shown=st.booleans())
def test_reasoning_comes_back_to_the_engine_as_it_left_it(text, engine_form, is_shown):
    signature = sign_thinking(sign, text, engine_form, is_shown=is_shown)
    block = {"type": "thinking", "thinking": text if is_shown else "", "signature": signature}
    items = respond("Hi", assistant(block, says("So.")), "On", unsign=VAULT.get).history
    expected = (history.ReasoningItem(text, encrypted_content=engine_form),) if text or engine_form else ()
    assert items[1:-2] == expected


def test_reasoning_of_another_model_is_left_out_without_a_word():
    alien = {"type": "thinking", "thinking": "As Claude I thought.", "signature": "EqQBCgIYAhIM"}
    redacted = {"type": "redacted_thinking", "data": "EmwKAhgB"}
    result = translated("Hi", assistant(alien, redacted, says("So.")), "On")
    assert len(result.respond.history) == 3 and result.omissions.items == []
    for content in (b"", b"no json", b'{"text": 1}'):
        assert len(respond("Hi", assistant(alien, says("So.")), "On", unsign=lambda _signature, content=content: content).history) == 3


def test_reasoning_that_lost_its_signature_keeps_its_text():
    block = {"type": "thinking", "thinking": "Hm."}
    assert respond("Hi", assistant(block, says("So.")), "On").history[1] == history.ReasoningItem("Hm.")
    empty = {"type": "thinking", "thinking": "", "signature": ""}
    assert len(respond("Hi", assistant(empty, says("So.")), "On").history) == 3


def test_the_engines_own_form_goes_only_to_an_engine_that_reads_it():
    signature = sign_thinking(sign, "", "xyz", is_shown=False)
    block = {"type": "redacted_thinking", "data": signature}
    assert respond("Hi", assistant(block, says("So.")), "On", unsign=VAULT.get).history[1].encrypted_content == "xyz"
    plain = Capabilities(tools=True)
    assert len(respond("Hi", assistant(block, says("So.")), "On", unsign=VAULT.get, capabilities=plain).history) == 3
    assert SignedThinking().text == ""
