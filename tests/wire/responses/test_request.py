import json

import pytest

from antiphon.errors import ClientError
from antiphon.wire.responses.items import FunctionCallOutput, ItemReference, Message
from antiphon.wire.responses.parts import AudioClip, InputAudio, InputImage
from antiphon.wire.responses.request import CreateRequest, ReasoningOptions, decode_request, encode_request


def decode(**fields):
    return decode_request(json.dumps(fields).encode())


def user(*parts):
    return {"role": "user", "content": list(parts)}


def test_nothing_is_required():
    assert decode() == CreateRequest()
    assert encode_request(CreateRequest()) == b"{}"
    assert dict(CreateRequest().extra or {}) == {}


def test_fields_beyond_the_protocol_pass_through_unchanged():
    request = decode_request(b'{"model":"m","client_metadata":{"a":[1.50,null]},"seed":7}')
    assert request.model == "m"
    assert dict(request.extra) == {"client_metadata": {"a": [1.5, None]}, "seed": 7}
    assert encode_request(request) == b'{"client_metadata":{"a":[1.50,null]},"seed":7,"model":"m"}'


def test_fields_beyond_the_protocol_do_not_hide_mistakes():
    with pytest.raises(ClientError) as caught:
        decode(seed=7, store="yes")
    assert caught.value.param == "store"


def test_absent_and_null_are_told_apart():
    assert encode_request(decode(temperature=None)) == b'{"temperature":null}'


@pytest.mark.parametrize("field", ["model", "input", "tools", "tool_choice", "text"])
def test_null_means_nothing_where_only_open_responses_has_it(field):
    assert decode(seed=7, **{field: None}) == decode(seed=7)


def test_reasoning_may_come_back_with_null_for_its_id():
    assert decode(input=[{"type": "reasoning", "id": None, "summary": []}]) == decode(input=[{"type": "reasoning", "summary": []}])


def test_input_is_text_or_items():
    assert decode(input="Hello").input == "Hello"
    assert decode(input=[{"role": "user", "content": "Hello"}]).input == [Message(role="user", content="Hello")]


def test_instructions_are_text_or_items_or_null():
    assert decode(instructions="Be brief.").instructions == "Be brief."
    assert decode(instructions=None).instructions is None
    assert decode(instructions=[{"role": "developer", "content": "Be brief."}]).instructions == [
        Message(role="developer", content="Be brief.")
    ]


def test_an_item_without_a_type_is_a_message_or_a_reference():
    items = [
        {"role": "user", "content": "a"},
        {"type": None, "id": "msg_1"},
        {"id": "msg_2"},
        {"type": None, "role": "user", "content": "b"},
    ]
    assert decode(input=items).input == [
        Message(role="user", content="a"),
        ItemReference(id="msg_1"),
        ItemReference(id="msg_2"),
        Message(role="user", content="b"),
    ]


def test_the_detail_of_a_picture_is_auto_in_a_message_only():
    picture = {"type": "input_image", "image_url": "https://example.org/cat.png"}
    request = decode(input=[user(picture), {"type": "function_call_output", "call_id": "c", "output": [picture]}])
    assert json.loads(encode_request(request))["input"] == [
        {"type": "message", "role": "user", "content": [picture | {"detail": "auto"}]},
        {"type": "function_call_output", "call_id": "c", "output": [picture]},
    ]
    assert isinstance(request.input[1], FunctionCallOutput)
    assert isinstance(request.input[1].output[0], InputImage)


def test_sound_is_a_part():
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert decode(input=[user(part)]).input[0].content == [InputAudio(input_audio=AudioClip(data="UklGRg==", format="wav"))]


def test_the_phase_of_the_assistant_round_trips():
    item = {"type": "message", "role": "assistant", "content": "Hm.", "phase": "commentary"}
    assert json.loads(encode_request(decode(input=[item])))["input"] == [item]


def test_a_summary_by_either_name_is_taken():
    assert decode(reasoning={"summary": "auto"}).reasoning == ReasoningOptions(summary="auto")
    assert decode(reasoning={"generate_summary": "auto", "summary": None}).reasoning.generate_summary == "auto"


def test_whole_numbers_are_decimals_too():
    assert decode(temperature=1).temperature == 1.0


SUMMARY = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "x"}]}
MISTAKES = [
    # what is missing
    (
        {"input": [user(), SUMMARY]},
        "input[1].summary[0].type",
        "missing_required_parameter",
        "Missing required parameter: 'input[1].summary[0].type'.",
    ),
    (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]},
        "input[0].arguments",
        "missing_required_parameter",
        "Missing required parameter: 'input[0].arguments'.",
    ),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter", "Missing required parameter: 'tools[0].name'."),
    ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_required_parameter", "Missing required parameter: 'tools[0].type'."),
    (
        {"text": {"format": {"type": "json_schema", "name": "n"}}},
        "text.format.schema",
        "missing_required_parameter",
        "Missing required parameter: 'text.format.schema'.",
    ),
    # what is none of those allowed
    (
        {"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
        "input[0].content[0]",
        "invalid_value",
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
    ),
    (
        {"input": [user({"type": "output_text", "text": "x"})]},
        "input[0].content[0]",
        "invalid_value",
        "Invalid value: 'output_text'. Supported values are: 'input_text', 'input_image', 'input_file', and 'input_audio'.",
    ),
    (
        {"input": [user({"type": "text", "text": "x"})]},
        "input[0].content[0].type",
        "invalid_value",
        "Invalid value: 'text'. "
        "Supported values are: 'input_text', 'input_image', 'output_text', 'refusal', 'input_file', and 'input_audio'.",
    ),
    ({"instructions": [user({"type": "refusal", "refusal": "x"})]}, "instructions[0].content[0]", "invalid_value", None),
    (
        {"input": [{"role": "robot", "content": "x"}]},
        "input[0].role",
        "invalid_value",
        "Invalid value: 'robot'. Supported values are: 'user', 'assistant', 'system', and 'developer'.",
    ),
    (
        {"input": [{"type": "reasoning", "summary": [{"type": "text", "text": "x"}]}]},
        "input[0].summary[0].type",
        "invalid_value",
        "Invalid value: 'text'. Supported values are: 'summary_text'.",
    ),
    ({"truncation": "left"}, "truncation", "invalid_value", "Invalid value: 'left'. Supported values are: 'auto' and 'disabled'."),
    ({"tool_choice": "any"}, "tool_choice", "invalid_value", "Invalid value: 'any'. Supported values are: 'none', 'auto', and 'required'."),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type", "invalid_value", None),
    ({"include": ["x"]}, "include[0]", "invalid_value", None),
    ({"service_tier": "x" * 200}, "service_tier", "invalid_value", None),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value", None),
    (
        {"text": {"format": {"type": "xml"}}},
        "text.format.type",
        "invalid_value",
        "Invalid value: 'xml'. Supported values are: 'text', 'json_schema', and 'json_object'.",
    ),
    # what is of the wrong kind
    (
        {"input": 3},
        "input",
        "invalid_type",
        "Invalid type for 'input': expected one of a string or array of input items, but got an integer instead.",
    ),
    (
        {"input": {}},
        "input",
        "invalid_type",
        "Invalid type for 'input': expected one of a string or array of input items, but got an object instead.",
    ),
    ({"input": ["x"]}, "input[0]", "invalid_type", "Invalid type for 'input[0]': expected an object, but got a string instead."),
    (
        {"input": [{"role": "assistant", "content": None}]},
        "input[0].content",
        "invalid_type",
        "Invalid type for 'input[0].content': expected one of an array of objects or string, but got null instead.",
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]},
        "input[0].output",
        "invalid_type",
        "Invalid type for 'input[0].output': expected one of a string or array of objects, but got an object instead.",
    ),
    (
        {"input": [{"type": 1}]},
        "input[0].type",
        "invalid_type",
        "Invalid type for 'input[0].type': expected a string, but got an integer instead.",
    ),
    (
        {"temperature": "hot"},
        "temperature",
        "invalid_type",
        "Invalid type for 'temperature': expected a decimal, but got a string instead.",
    ),
    (
        {"max_output_tokens": 16.5},
        "max_output_tokens",
        "invalid_type",
        "Invalid type for 'max_output_tokens': expected an integer, but got a decimal number instead.",
    ),
    (
        {"max_output_tokens": "16"},
        "max_output_tokens",
        "invalid_type",
        "Invalid type for 'max_output_tokens': expected an integer, but got a string instead.",
    ),
    (
        {"tool_choice": 7},
        "tool_choice",
        "invalid_type",
        "Invalid type for 'tool_choice': expected one of an object or 'none', 'auto', or 'required', but got an integer instead.",
    ),
    (
        {"truncation": {}},
        "truncation",
        "invalid_type",
        "Invalid type for 'truncation': expected one of 'auto' or 'disabled', but got an object instead.",
    ),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type", "Invalid type for 'metadata.a': expected a string, but got an integer instead."),
    ({"store": "yes"}, "store", "invalid_type", "Invalid type for 'store': expected a boolean, but got a string instead."),
    ({"include": "x"}, "include", "invalid_type", None),
    ({"tools": {}}, "tools", "invalid_type", "Invalid type for 'tools': expected an array of objects, but got an object instead."),
    (
        {"tools": [{"type": "file_search", "vector_store_ids": "vs"}]},
        "tools[0].vector_store_ids",
        "invalid_type",
        "Invalid type for 'tools[0].vector_store_ids': expected an array of strings, but got a string instead.",
    ),
    # URLs that are none
    *(
        (
            {"input": [{"role": "user", "content": [part]}]},
            f"input[0].content[0].{field}",
            "invalid_url",
            f"Invalid 'input[0].content[0].{field}': a URL must begin with 'https://', 'http://', or 'data:'.",
        )
        for field, part in (
            ("image_url", {"type": "input_image", "image_url": "cat.png"}),
            ("image_url", {"type": "input_image", "image_url": ""}),
            ("image_url", {"type": "input_image", "image_url": "file:///etc/passwd"}),
            ("file_url", {"type": "input_file", "file_url": "ftp://files.example/a.pdf"}),
        )
    ),
    *(
        ({"input": [{"type": kind, "call_id": "c", "output": output}]}, f"input[0].output{field}", "invalid_url", None)
        for kind, output, field in (
            ("function_call_output", [{"type": "input_image", "image_url": "cat.png"}], "[0].image_url"),
            ("custom_tool_call_output", [{"type": "input_file", "file_url": "a.pdf"}], "[0].file_url"),
            ("computer_call_output", {"type": "computer_screenshot", "image_url": "screen.png"}, ".image_url"),
        )
    ),
    # what is out of bounds
    (
        {"max_output_tokens": 15},
        "max_output_tokens",
        "integer_below_min_value",
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 15 instead.",
    ),
    ({"max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value", None),
    ({"top_logprobs": -1}, "top_logprobs", "integer_below_min_value", None),
    (
        {"top_logprobs": 21},
        "top_logprobs",
        "integer_above_max_value",
        "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 instead.",
    ),
    (
        {"temperature": -0.5},
        "temperature",
        "decimal_below_min_value",
        "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -0.5 instead.",
    ),
    (
        {"temperature": 3},
        "temperature",
        "decimal_above_max_value",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
    ),
    ({"top_p": 1.1}, "top_p", "decimal_above_max_value", None),
    ({"presence_penalty": 2.5}, "presence_penalty", "decimal_above_max_value", None),
    ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value", None),
    (
        {"context_management": []},
        "context_management",
        "empty_array",
        "Invalid 'context_management': empty array. Expected an array with minimum length 1, but got an empty array instead.",
    ),
    (
        {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
        "context_management[0].compact_threshold",
        "integer_below_min_value",
        None,
    ),
    ({"tools": [{"type": "image_generation", "partial_images": 4}]}, "tools[0].partial_images", "integer_above_max_value", None),
    ({"tools": [{"type": "image_generation", "output_compression": 101}]}, "tools[0].output_compression", "integer_above_max_value", None),
    # what is too long, or too short
    (
        {"input": "x" * 10_485_761},
        "input",
        "string_above_max_length",
        "Invalid 'input': string too long. Expected a string with maximum length 10485760, but got a string with length 10485761 instead.",
    ),
    ({"input": [user({"type": "input_text", "text": "x" * 10_485_761})]}, "input[0].content[0].text", "string_above_max_length", None),
    (
        {"input": [user({"type": "input_image", "image_url": "x" * 20_971_521})]},
        "input[0].content[0].image_url",
        "string_above_max_length",
        None,
    ),
    (
        {"input": [{"type": "compaction", "encrypted_content": "x" * 20_971_521}]},
        "input[0].encrypted_content",
        "string_above_max_length",
        None,
    ),
    ({"input": [{"type": "function_call_output", "call_id": "c" * 65, "output": ""}]}, "input[0].call_id", "string_above_max_length", None),
    (
        {"input": [{"type": "function_call_output", "call_id": "", "output": ""}]},
        "input[0].call_id",
        "empty_string",
        "Invalid 'input[0].call_id': empty string. Expected a string with minimum length 1, but got an empty string instead.",
    ),
    (
        {"input": [{"type": "function_call_output", "output": "", "namespace": "n" * 65}]},
        "input[0].namespace",
        "string_above_max_length",
        None,
    ),
    ({"safety_identifier": "x" * 65}, "safety_identifier", "string_above_max_length", None),
    ({"prompt_cache_key": "x" * 65}, "prompt_cache_key", "string_above_max_length", None),
    (
        {"metadata": {str(n): "" for n in range(17)}},
        "metadata",
        "object_above_max_properties",
        "Invalid 'metadata': too many properties. "
        "Expected an object with at most 16 properties, but got an object with 17 properties instead.",
    ),
    (
        {"metadata": {"k" * 65: ""}},
        f"metadata.{'k' * 65}",
        "property_name_above_max_length",
        f"Invalid property name in 'metadata': '{'k' * 65}' is too long. "
        "Expected a string with maximum length 64, but got a string with length 65 instead.",
    ),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length", None),
    (
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"] * 51}}]},
        "tools[0].container.file_ids",
        "array_above_max_length",
        "Invalid 'tools[0].container.file_ids': array too long. "
        "Expected an array with maximum length 50, but got an array with length 51 instead.",
    ),
    (
        {
            "tools": [
                {"type": "shell", "environment": {"type": "container_auto", "skills": [{"type": "skill_reference", "skill_id": "s"}] * 201}}
            ]
        },
        "tools[0].environment.skills",
        "array_above_max_length",
        None,
    ),
    # what does not match, or excludes something
    (
        {"tools": [{"type": "function", "name": "a b"}]},
        "tools[0].name",
        "invalid_value",
        "Invalid 'tools[0].name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
    ),
    ({"tools": [{"type": "function", "name": "a\n"}]}, "tools[0].name", "invalid_value", None),
    ({"tools": [{"type": "function", "name": "a" * 129}]}, "tools[0].name", "string_above_max_length", None),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name", "empty_string", None),
    (
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs"], "max_num_results": 0}]},
        "tools[0].max_num_results",
        "integer_below_min_value",
        None,
    ),
    (
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs"], "max_num_results": 51}]},
        "tools[0].max_num_results",
        "integer_above_max_value",
        None,
    ),
    ({"tools": [{"type": "custom", "name": ""}]}, "tools[0].name", "empty_string", None),
    ({"tools": [{"type": "namespace", "name": "", "description": "", "tools": []}]}, "tools[0].name", "empty_string", None),
    ({"tools": [{"type": "mcp", "server_label": "a b"}]}, "tools[0].server_label", "invalid_value", None),
    ({"tools": [{"type": "mcp", "server_label": "a\n"}]}, "tools[0].server_label", "invalid_value", None),
    ({"tools": [{"type": "mcp", "server_label": ""}]}, "tools[0].server_label", "empty_string", None),
    ({"tools": [{"type": "mcp", "server_label": "s", "tunnel_id": "tunnel_1"}]}, "tools[0].tunnel_id", "invalid_value", None),
    (
        {"reasoning": {"summary": "auto", "generate_summary": "auto"}},
        "reasoning.generate_summary",
        "mutually_exclusive_parameters",
        "Mutually exclusive parameters: 'reasoning.summary' and 'reasoning.generate_summary'. "
        "Ensure you are only providing one of: 'reasoning.summary' or 'reasoning.generate_summary'.",
    ),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id", "mutually_exclusive_parameters", None),
]


@pytest.mark.parametrize(("fields", "param", "code", "message"), MISTAKES, ids=[f"{param[:40]} {code}" for _, param, code, _ in MISTAKES])
def test_a_mistake_is_named_with_its_place(fields, param, code, message):
    with pytest.raises(ClientError) as caught:
        decode(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.message == (message or caught.value.message)
    assert len(caught.value.message) < 600
    assert caught.value.status == 400


LIMITS = [
    {"max_output_tokens": 16},
    {"top_logprobs": 20},
    {"temperature": 2.0, "top_p": 1.0},
    {"metadata": {f"{n:064}": "v" * 512 for n in range(16)}},
    {"tools": [{"type": "function", "name": "a" * 128}]},
    {"tools": [{"type": "mcp", "server_label": "s", "tunnel_id": "tunnel_" + "a1" * 16}]},
    {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    {"safety_identifier": "x" * 64},
]


@pytest.mark.parametrize("fields", LIMITS, ids=lambda fields: next(iter(fields)))
def test_a_limit_itself_is_allowed(fields):
    assert json.loads(encode_request(decode(**fields))) == fields


def test_a_body_that_is_no_object_is_refused():
    with pytest.raises(ClientError) as caught:
        decode_request(b'"Hello"')
    assert (caught.value.code, caught.value.param) == ("invalid_type", None)


def test_a_body_nested_too_deep_is_refused():
    with pytest.raises(ClientError, match="nested"):
        decode_request(b'{"metadata":' * 65 + b"1" + b"}" * 65)


@pytest.mark.parametrize("body", [b'{"input":"Hello"}', b'{"input":[{"role":"user","content":"Hello"}]}'])
def test_input_is_items_however_it_was_sent(body):
    (message,) = decode_request(body).input_items
    assert isinstance(message, Message)
    assert (message.role, message.text) == ("user", "Hello")


def test_absent_input_is_no_items():
    assert decode_request(b"{}").input_items == []
