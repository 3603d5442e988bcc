"""Which tools of a request the model gets, and how the others are reported."""

import time

import msgspec
import pytest

from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import CustomTool, HostedTool, ToolChoice
from antiphon.errors import ClientError
from antiphon.protocols.responses.request import ResolvedRequest, engine_request
from antiphon.wire.responses import items
from antiphon.wire.responses.request import decode_request

ABLE = Capabilities(tools=True, custom_tools=True)
F = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "Does f."}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": LARK}


def namespace(name, *members):
    return {"type": "namespace", "name": name, "description": f"All of {name}.", "tools": list(members)}


def asked(capabilities=ABLE, carries=True, past=(), **fields):
    request = decode_request(msgspec.json.encode({"input": "Hi", **fields}))
    said = items.Message(role="user", content="Hi")
    given = tuple(request.input) if isinstance(request.input, list) else (said,)
    order = ResolvedRequest(
        id="resp_1",
        tenant="t",
        created_at=1,
        model="m",
        request=request,
        capabilities=capabilities,
        input_items=given,
        previous_items=past,
        omit_unsupported=carries,
    )
    return engine_request(order)


def refusal(**fields):
    with pytest.raises(ClientError) as refused:
        asked(**fields)
    return refused.value.status, refused.value.code, refused.value.param


def test_a_namespace_is_the_tools_in_it():
    made = asked(tools=[F, namespace("gh", {"type": "function", "name": "f"}, {"type": "custom", "name": "edit"})]).respond
    assert [tool.key for tool in made.tools] == ["f", "gh.f", "gh.edit"]
    assert made.namespaces == {"gh": "All of gh."}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([F, F], "tools[1].name"),
        ([{"type": "web_search"}, F, {"type": "custom", "name": "f"}], "tools[2].name"),
        ([namespace("n", F), namespace("n", {"type": "function", "name": "g"})], "tools[1].name"),
        ([F, namespace("n", F, {"type": "custom", "name": "f"})], "tools[1].tools[1].name"),
    ],
)
def test_two_tools_of_one_name_are_refused(tools, param):
    assert refusal(tools=tools) == (400, "invalid_value", param)


def test_a_name_may_stand_in_several_namespaces_and_again_in_items():
    addition = items.AdditionalTools(role="developer", tools=decode_request(msgspec.json.encode({"input": "", "tools": [F]})).tools)
    assert asked(tools=[F, namespace("n", F), namespace("f", F)], past=(addition, addition))


@pytest.mark.parametrize("type", ["web_search", "image_generation", "programmatic_tool_calling", "from_the_future"])
def test_a_tool_that_the_engine_has_not_is_carried_or_refused(type):
    carried = asked(tools=[F, {"type": type}])
    assert [tool.name for tool in carried.respond.tools] == ["f"]
    assert carried.omissions.tools == [type]
    assert refusal(tools=[F, {"type": type}], carries=False) == (400, "unsupported_parameter", "tools[1]")


CLIENT_TOOLS = {
    "local_shell": {"type": "local_shell"},
    "shell": {"type": "shell", "environment": {"type": "local"}},
    "apply_patch": {"type": "apply_patch"},
    "computer": {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "mac"},
    "tool_search": {"type": "tool_search", "execution": "client"},
}


@pytest.mark.parametrize("carries", [True, False])
@pytest.mark.parametrize("name", CLIENT_TOOLS)
def test_a_tool_that_the_client_runs_is_a_function_for_the_model(name, carries):
    tool = CLIENT_TOOLS[name]
    made = asked(tools=[F, tool], carries=carries, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": tool["type"]}]})
    function = made.respond.tools[1]
    assert (function.name, made.omissions.tools, made.respond.tool_choice.names) == (name, [], (name,))
    assert function.parameters["required"] and function.parameters["type"] == "object" and function.description


@pytest.mark.parametrize("type", ["apply_patch", "shell", "computer", "computer_use"])
def test_a_tool_that_the_client_runs_can_be_required_by_its_type(type):
    made = asked(tools=[F, *({"type": each} for each in ("apply_patch", "shell", "computer"))], tool_choice={"type": type})
    assert made.respond.tool_choice == ToolChoice("required", (type.removesuffix("_use"),))


def test_the_skills_of_a_local_shell_are_told():
    skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
    made = asked(tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}])
    assert "- pdf: Reads PDFs. (in /skills/pdf)" in made.respond.tools[0].description


def test_a_shell_in_a_container_is_not_the_clients():
    assert asked(tools=[F, {"type": "shell", "environment": {"type": "container_auto"}}]).omissions.tools == ["shell"]


def test_a_tool_for_programs_alone_is_refused():
    only = {**F, "allowed_callers": ["programmatic"]}
    assert refusal(tools=[only]) == (400, "unsupported_parameter", "tools[0].allowed_callers")
    assert refusal(tools=[{"type": "shell", "allowed_callers": ["programmatic"]}])[2] == "tools[0].allowed_callers"
    assert len(asked(tools=[{**F, "allowed_callers": ["programmatic", "direct"]}]).respond.tools) == 1


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}


def test_a_call_without_its_namespace_gets_the_one_that_there_is():
    made = asked(tools=[namespace("gh", {"type": "function", "name": "f"})], input=[CALL, OUTPUT]).respond
    assert made.history[0].namespace == "gh"
    assert asked(tools=[F, namespace("gh", {"type": "function", "name": "f"})], input=[CALL, OUTPUT]).respond.history[0].namespace is None
    both = [namespace(name, {"type": "function", "name": "f"}) for name in ("gh", "gl")]
    assert refusal(tools=both, input=[CALL, OUTPUT]) == (400, None, "input")


LATER = {"type": "function", "name": "later", "description": "Does it later.", "defer_loading": True}


@pytest.mark.parametrize(
    ("tools", "offered"),
    [
        ([F, LATER], ["f", "later"]),  # nothing could find it
        ([F, LATER, {"type": "tool_search"}], ["f", "tool_search"]),
        ([F, {"type": "tool_search"}], ["f"]),
        ([F, namespace("gh", F, LATER), {"type": "tool_search"}], ["f", "gh.f", "tool_search"]),
        ([F, LATER, {"type": "tool_search", "execution": "client"}], ["f", "tool_search"]),
    ],
)
def test_a_tool_whose_loading_is_deferred_waits_for_a_search(tools, offered):
    assert [tool.key for tool in asked(tools=tools).respond.tools] == offered


def test_an_engine_with_a_search_of_its_own_gets_deferred_tools_as_such():
    able = Capabilities(tools=True, hosted=("tool_search",))
    made = asked(tools=[F, LATER, {"type": "tool_search"}], capabilities=able).respond
    assert [(tool.name, tool.defer_loading) for tool in made.tools] == [("f", False), ("later", True)]
    assert made.hosted_tools == (HostedTool("tool_search", {"type": "tool_search"}),)


def test_a_search_names_what_can_be_found():
    tools = [LATER, namespace("gh", LATER), {"type": "custom", "name": "edit", "defer_loading": True}, {"type": "tool_search"}]
    assert asked(tools=tools).respond.tools[0].description.splitlines()[1:] == [
        "- gh: a group of tools: All of gh.",
        "- later: Does it later.",
        "- edit: ",
    ]


@pytest.mark.parametrize("execution", ["client", "server"])
def test_a_tool_that_was_found_is_offered_once(execution):
    found = {"type": "tool_search_output", "call_id": "c" if execution == "client" else None, "execution": execution, "tools": [LATER]}
    call = {"type": "tool_search_call", "call_id": found["call_id"], "execution": execution, "arguments": {}}
    tools = [LATER, {**LATER, "name": "never"}, {"type": "tool_search", "execution": execution}]
    made = asked(tools=tools, input=[{"role": "user", "content": "Hi"}, call, found]).respond
    assert [tool.key for tool in made.tools] == ["later", "tool_search"]


def test_a_tool_of_no_known_type_within_a_namespace_is_named_by_its_place():
    tools = [namespace("gh", {"type": "from_the_future"})]
    assert asked(tools=tools).omissions.tools == ["from_the_future"]
    assert refusal(tools=tools, carries=False) == (400, "unsupported_parameter", "tools[0].tools[0]")


def test_a_model_without_functions_is_never_asked_to_do_without_those_of_its_client():
    assert refusal(tools=[F], capabilities=Capabilities()) == (400, "unsupported_parameter", "tools[0]")


def test_a_grammar_that_is_not_enforced_is_told_in_words():
    carried = asked(tools=[PATCH])
    (tool,) = carried.respond.tools
    assert tool.grammar is None
    assert tool.description == "Edits files.\n\nThe input must match this lark grammar:\nstart: /x/"
    assert carried.omissions.grammars == ["apply_patch"]
    assert refusal(tools=[PATCH], carries=False) == (400, "unsupported_parameter", "tools[0].format")


def test_a_grammar_that_is_enforced_is_handed_on():
    carried = asked(tools=[PATCH], capabilities=Capabilities(custom_tools=True, grammars=True))
    assert carried.respond.tools == (CustomTool("apply_patch", "Edits files.", "lark", "start: /x/"),)
    assert carried.omissions.grammars == []


def test_a_tool_that_the_engine_runs_is_handed_on_as_it_came():
    tool = {"type": "web_search", "search_context_size": "low", "new": 1}
    made = asked(tools=[tool], capabilities=Capabilities(hosted=("web_search",))).respond
    assert made.hosted_tools == (HostedTool("web_search", tool),)


def test_tools_that_were_added_in_the_conversation_are_offered():
    added = {"type": "additional_tools", "role": "developer", "tools": [F]}
    made = asked(input=[{"role": "user", "content": "Hi"}, added])
    assert [tool.name for tool in made.respond.tools] == ["f"]
    assert made.omissions.items == []


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "name": "f"}, "required", ("f", "gh.f")),
        ({"type": "function", "name": "gh.f"}, "required", ("gh.f",)),
        ({"type": "function", "name": "f", "namespace": "gh"}, "required", ("gh.f",)),
        ({"type": "custom", "name": "apply_patch"}, "required", ("apply_patch",)),
        ({"type": "image_generation"}, "required", ("image_generation",)),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "gh.f"}, {"type": "image_generation"}]},
            "auto",
            ("gh.f", "image_generation"),
        ),
    ],
)
def test_a_choice_means_tools_on_offer(choice, mode, names):
    tools = [F, namespace("gh", {"type": "function", "name": "f"}), PATCH, {"type": "image_generation"}]
    able = Capabilities(tools=True, custom_tools=True, hosted=("image_generation",))
    assert asked(tools=tools, tool_choice=choice, capabilities=able).respond.tool_choice == ToolChoice(mode, names)


@pytest.mark.parametrize("carries", [True, False])
@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "image_generation"},
        {"type": "function", "name": "web_search"},
        {"type": "mcp", "server_label": "x"},
        {"type": "shell"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "image_generation"}]},
    ],
)
def test_a_choice_of_what_is_not_on_offer_is_refused(choice, carries):
    tools = [{"type": "image_generation"}] if carries else []
    assert refusal(tools=tools, tool_choice=choice, carries=carries) == (400, "invalid_value", "tool_choice")


@pytest.mark.parametrize("names", [["f", "f"], ["gh.f"], ["f", "gh.f"]])
def test_a_tool_that_is_chosen_twice_is_chosen_once(names):
    allowed = [{"type": "function", "name": name} for name in names]
    tools = [F, namespace("gh", {"type": "function", "name": "f"})]
    choice = asked(tools=tools, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed}).respond.tool_choice
    assert choice.names == tuple(dict.fromkeys(["f", "gh.f"] if "f" in names else names))


@pytest.mark.parametrize("name", [5, {}, [], True])
def test_a_choice_by_what_is_no_name_is_refused(name):
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": name}]}
    assert refusal(tools=[F], tool_choice=choice) == (400, "invalid_value", "tool_choice")


@pytest.mark.parametrize("same", [False, True])
def test_many_tools_and_many_choices_are_not_compared_each_with_each(same):
    """Quadratic work: a megabyte of `allowed_tools` held the server up for ten seconds, or, all of one name, for its memory."""
    tools = [{"type": "function", "name": f"f{index}"} for index in range(16_000)]
    allowed = tools[:1] * len(tools) if same else tools
    begun_s = time.process_time()
    choice = asked(tools=tools, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": allowed}).respond.tool_choice
    assert time.process_time() - begun_s < 5, "it is some 0.3 s; each with each, 20 s"
    assert choice.names == tuple(tool["name"] for tool in (tools[:1] if same else tools))
    assert choice.name_set == set(choice.names)


def test_a_choice_among_tools_leaves_it_to_the_model_unless_it_says_otherwise():
    choice = asked(tools=[F], tool_choice={"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}).respond.tool_choice
    assert (choice.mode, choice.names) == ("auto", ("f",))


def test_sealed_reasoning_is_asked_for_when_the_client_asks():
    assert asked(include=["reasoning.encrypted_content"]).respond.encrypt_reasoning
    assert not asked().respond.encrypt_reasoning


STRANGE = {"type": "object", "properties": {"a": {"type": "strin"}}}
QUESTION = {"role": "user", "content": "Hi"}
REGEX = {"type": "custom", "name": "date", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+("}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": STRANGE}}},
            "invalid_json_schema",
            "text.format.schema",
        ),
        ({"tools": [F, F | {"name": "g", "parameters": STRANGE}]}, "invalid_function_parameters", "tools[1].parameters"),
        ({"tools": [namespace("n", F | {"parameters": STRANGE})]}, "invalid_function_parameters", "tools[0].tools[0].parameters"),
        ({"tools": [REGEX]}, "invalid_value", "tools[0].format.definition"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "empty_array", "tool_choice.tools"),
        (
            {"input": [QUESTION, {"type": "additional_tools", "role": "developer", "tools": [F | {"parameters": STRANGE}]}]},
            "invalid_function_parameters",
            "input[1].tools[0].parameters",
        ),
    ],
)
def test_what_no_model_can_be_held_to_is_refused(fields, code, param):
    assert refusal(capabilities=Capabilities(tools=True, custom_tools=True, json_schema=True), **fields) == (400, code, param)


def test_a_schema_that_holds_nothing_may_be_anything():
    assert asked(tools=[F | {"parameters": STRANGE, "strict": False}]).respond.tools


def test_a_picture_without_a_file_and_a_url_is_refused():
    pictures = Capabilities(tools=True, images=True)
    asks = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image"}]}
    assert refusal(capabilities=pictures, input=[asks]) == (400, "missing_required_parameter", "input[0].content[1].file_id")
