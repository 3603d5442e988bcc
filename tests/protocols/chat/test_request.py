"""How each field of a chat request is used, and which are refused."""

import pytest

from antiphon.engine_api import history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.documents import FileContent
from antiphon.engine_api.options import CustomTool, FunctionTool, JsonObject, JsonSchema, ToolChoice, Voice
from antiphon.errors import ClientError
from antiphon.protocols.chat.request import engine_requests
from support.protocols.chat_dialogues import ALL, chat

NOTHING = Capabilities()
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
G = {"type": "function", "function": {"name": "g"}}
CUSTOM = {"type": "custom", "custom": {"name": "c", "description": "Cuts."}}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
STRANGE = {"type": "object", "properties": {"a": {"type": "strin"}}}
REGEX = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+("}}
TEXT_FILE = "data:text/plain;base64,SGVsbG8="


def respond(**fields):
    return engine_requests(chat(**fields))[0]


def items(*messages, **fields):
    return respond(messages=list(messages), **fields).history


def strict(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}


def refusal(**fields):
    with pytest.raises(ClientError) as raised:
        respond(**fields)
    assert raised.value.status == 400
    return raised.value


def user(*parts):
    return {"role": "user", "content": list(parts)}


# Messages


def test_instructions_stay_where_they_stand():
    assert items(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "Ada"},
        {"role": "developer", "content": [{"type": "text", "text": "In verse.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "Go on"},
    ) == (
        history.Message("system", (history.TextPart("Be brief."),)),
        history.Message("user", (history.TextPart("Hi"),)),
        history.Message("developer", (history.TextPart("In verse."),)),
        history.Message("user", (history.TextPart("Go on"),)),
    )


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_message_with_calls_alone_is_only_calls(content):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert items(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    )[1:] == (history.ToolCall("c1", "f", "{}"), history.ToolResult("c1", (history.TextPart("42"),)))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_comes_before_what_it_led_to(field):
    message = {
        "role": "assistant",
        field: "Hm.",
        "content": "Yes.",
        "tool_calls": [{"id": "c", "custom": {"name": "c", "input": "x"}, "type": "custom"}],
    }
    assert items({"role": "user", "content": "?"}, message, {"role": "tool", "tool_call_id": "c", "content": "y"})[1:4] == (
        history.ReasoningItem("Hm."),
        history.Message("assistant", (history.TextPart("Yes."),)),
        history.ToolCall("c", "c", "x", custom=True),
    )


def test_a_refusal_is_one():
    assert items({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, {"role": "assistant", "refusal": "Never."}) == (
        history.Message("assistant", (history.RefusalPart("No."),)),
        history.Message("assistant", (history.RefusalPart("Never."),)),
    )


def test_an_answer_of_a_function_belongs_to_the_latest_call_of_it():
    said = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    answer = {"role": "function", "name": "f", "content": "1"}
    calls = [item.call_id for item in items({"role": "user", "content": "?"}, said, answer, said, answer)[1:]]
    assert calls[0] == calls[1] != calls[2] == calls[3]


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        (
            [{"role": "tool", "tool_call_id": "c", "content": "x"}],
            "messages[0].role",
            "must be a response to a preceeding message with 'tool_calls'",
        ),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role", "'function_call'"),
        ([{"role": "function", "content": "x"}], "messages[0].name", "Missing"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c7", "type": "function", "function": {"name": "f", "arguments": ""}}]}],
            "messages",
            "The following tool_call_ids did not have response messages: c7",
        ),
        ([{"role": "assistant", "audio": {"id": "audio_1"}}], "messages[0].audio", "transcript"),
        ([{"role": "system", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}], "messages[0].content[0].type", "'text'"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "messages[0].content[0].file.file_id", "Missing"),
        (
            [{"role": "user", "content": [{"type": "file", "file": {"file_data": "§"}}]}],
            "messages[0].content[0].file.file_data",
            "base64",
        ),
    ],
)
def test_messages_that_make_no_sense_are_refused(messages, param, words):
    error = refusal(messages=messages)
    assert error.param == param
    assert words in error.message


def test_a_spoken_answer_comes_back_as_its_transcript():
    assert items({"role": "assistant", "audio": {"id": "audio_1"}, "content": "Hi"}) == (
        history.Message("assistant", (history.TextPart("Hi"),)),
    )


def test_pictures_sounds_and_documents_for_a_model_that_takes_them():
    (message,) = items(
        user(
            {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"type": "file", "file": {"file_data": TEXT_FILE, "filename": "a.txt"}},
            {"type": "file", "file": {"file_id": "file-1"}},
        ),
        documents={"file-1": FileContent(PICTURE, "image/png")},
    )
    assert message.parts[:2] == (history.ImagePart(PICTURE, detail="low"), history.AudioPart("UklGRg==", "wav"))
    assert isinstance(message.parts[2], history.FilePart) and message.parts[2].filename == "a.txt"
    assert message.parts[3] == history.ImagePart(PICTURE)


def test_a_text_file_is_text_and_a_recording_its_transcript_for_a_model_that_takes_neither():
    (message,) = items(
        user(
            {"type": "file", "file": {"file_data": TEXT_FILE, "filename": "a.txt"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        ),
        capabilities=NOTHING,
        transcripts={"messages[0].content[1]": "Good day."},
    )
    assert "Hello" in message.parts[0].text
    assert message.parts[1] == history.TextPart("Good day.")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_data": PICTURE}},
    ],
)
def test_what_a_model_does_not_take_is_refused_by_its_place(part):
    error = refusal(messages=[user({"type": "text", "text": "See:"}, part)], capabilities=NOTHING)
    assert (error.code, error.param) == ("unsupported_parameter", "messages[0].content[1]")


def test_a_url_in_the_place_of_a_recording_is_refused():
    part = {"type": "input_audio", "input_audio": {"data": "http://10.0.0.1/a.wav", "format": "wav"}}
    error = refusal(messages=[user(part)])
    assert (error.code, error.param) == ("invalid_value", "messages[0].content[0].input_audio.data")


# Tools


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice("none")),
        ("auto", ToolChoice("auto")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "g"}}, ToolChoice("required", ("g",))),
        ({"type": "custom", "custom": {"name": "c"}}, ToolChoice("required", ("c",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}},
            ToolChoice("auto", ("f",)),
        ),
    ],
)
def test_every_form_of_choice(choice, wanted):
    request = respond(tools=[F, G, CUSTOM], tool_choice=choice, parallel_tool_calls=False)
    assert request.tool_choice == wanted
    assert request.tools == (FunctionTool("f", None, {"type": "object"}, True), FunctionTool("g"), CustomTool("c", "Cuts."))
    assert request.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("call", "wanted"), [(None, ToolChoice()), ("none", ToolChoice("none")), ({"name": "f"}, ToolChoice("required", ("f",)))]
)
def test_functions_are_tools_of_an_older_form(call, wanted):
    request = respond(functions=[F["function"]], function_call=call)
    assert (request.tools, request.tool_choice) == ((FunctionTool("f", None, {"type": "object"}, True),), wanted)


def test_a_choice_of_tools_that_are_not_there_is_refused():
    assert refusal(tools=[F], tool_choice={"type": "function", "function": {"name": "x"}}).param == "tool_choice"
    assert refusal(tool_choice="required").param == "tool_choice"
    assert refusal(functions=[F["function"]], function_call={"name": "x"}).param == "function_call"
    assert respond(tool_choice="auto").tool_choice == ToolChoice("auto")


def test_a_grammar_is_enforced_or_told():
    tool = {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}}}
    assert respond(tools=[tool]).tools == (CustomTool("c", None, "regex", "a+"),)
    (told,) = respond(tools=[tool], capabilities=Capabilities(custom_tools=True)).tools
    assert told.grammar is None and "a+" in told.description


# Other fields


def test_what_the_api_does_not_have_goes_on_to_the_engine():
    request = respond(
        top_k=4, min_p=0.1, stop="x", seed=7, logit_bias={"1": 5}, chat_template_kwargs={"enable_thinking": False}, user="u", store=True
    )
    assert request.sampling.extra == {
        "top_k": 4,
        "min_p": 0.1,
        "stop": "x",
        "seed": 7,
        "logit_bias": {"1": 5},
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_sampling():
    sampling = respond(
        temperature=0.5, top_p=0.9, presence_penalty=1, frequency_penalty=-1, max_completion_tokens=5, logprobs=True
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 0.9, 1, -1)
    assert (sampling.max_tokens, sampling.top_logprobs) == (5, 0)
    assert respond(max_tokens=9, logprobs=True, top_logprobs=3).sampling.top_logprobs == 3
    assert respond(max_tokens=9).sampling.max_tokens == 9
    assert respond(logprobs=False).sampling.top_logprobs is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonObject()),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True, "description": "d"}},
            JsonSchema("n", {"type": "object"}, True, "d"),
        ),
    ],
)
def test_formats(given, wanted):
    assert respond(response_format=given).format == wanted


def test_effort_and_verbosity_are_for_models_that_know_them():
    assert respond(reasoning_effort="low", verbosity="high").reasoning_effort == "low"
    assert respond(reasoning={"effort": "high"}).reasoning_effort == "high"
    assert respond(reasoning={"effort": "odd"}).reasoning_effort is None
    assert respond(reasoning="yes").reasoning_effort is None
    assert respond(reasoning_effort="low", capabilities=NOTHING).reasoning_effort is None
    assert refusal(reasoning_effort="max").param == "reasoning_effort"
    assert refusal(verbosity="medium").param == "verbosity"


def test_speech():
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": {"id": "v"}, "format": "wav"}}
    assert respond(**spoken).voice == Voice("v", 24_000)
    assert respond(audio={"voice": "v", "format": "wav"}).voice is None
    assert refusal(**spoken, capabilities=NOTHING).param == "modalities"
    assert refusal(**spoken, n=2).param == "n"
    assert refusal(**spoken, stream=True).param == "audio.format"
    assert refusal(**spoken, capabilities=Capabilities(audio_out=True, voices=("alloy",))).param == "audio.voice"
    assert refusal(modalities=["audio"], audio={"voice": "v", "format": "wav"}).param == "modalities"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"n": 9}, "integer_above_max_value", "n"),
        ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
        ({"moderation": {"model": "omni"}}, "unsupported_parameter", "moderation"),
        ({"presence_penalty": 1, "capabilities": NOTHING}, "unsupported_parameter", "presence_penalty"),
        ({"logprobs": True, "capabilities": NOTHING}, "unsupported_parameter", "logprobs"),
        (
            {"logprobs": True, "top_logprobs": 9, "capabilities": Capabilities(max_top_logprobs=5)},
            "integer_above_max_value",
            "top_logprobs",
        ),
        ({"response_format": {"type": "json_object"}, "capabilities": NOTHING}, "unsupported_value", "response_format.type"),
        ({"tools": [F], "capabilities": NOTHING}, "unsupported_parameter", "tools[0]"),
        ({"functions": [F["function"]], "capabilities": NOTHING}, "unsupported_parameter", "functions[0]"),
        ({"tools": [F, CUSTOM], "capabilities": Capabilities(tools=True)}, "unsupported_parameter", "tools[1]"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": STRANGE}}},
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        ({"tools": [F, G, F]}, "invalid_value", "tools[2]"),
        (
            {"tools": [F], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "empty_array",
            "tool_choice.allowed_tools.tools",
        ),
        ({"tools": [strict(STRANGE)]}, "invalid_function_parameters", "tools[0].function.parameters"),
        ({"functions": [strict(STRANGE)["function"]]}, "invalid_function_parameters", "functions[0].parameters"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "c", "format": REGEX}}]},
            "invalid_value",
            "tools[0].custom.format.grammar.definition",
        ),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(fields, code, param):
    error = refusal(**fields)
    assert (error.code, error.param) == (code, param)


def test_the_schema_of_a_function_that_is_not_strict_may_be_anything():
    assert respond(tools=[{"type": "function", "function": {"name": "f", "parameters": STRANGE}}]).tools


def test_the_most_choices_are_eight_and_the_error_says_so():
    assert len(engine_requests(chat(n=8))) == 8
    assert "8" in refusal(n=9).message


def test_hints_have_no_effect():
    hints = {"prediction": {"type": "content", "content": "x"}, "service_tier": "flex", "safety_identifier": "s", "metadata": {"a": "b"}}
    hints |= {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h"}
    assert respond(**hints) == respond()
    assert respond(capabilities=ALL).whole is True
