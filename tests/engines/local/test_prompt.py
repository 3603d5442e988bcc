"""The prompt: who said what, and what may be dropped."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, history as engine_history
from antiphon.engine_api.options import FunctionTool, JsonSchema
from antiphon.engines.local.prompt import PromptSegment, TemplatePlaceholders, chatml, prompt_messages
from antiphon.engines.local.tool_grammar import callable_tools
from antiphon.errors import ClientError

TOOL = FunctionTool("look_up", "Looks up", {"type": "object"}, namespace="web")
CALL = engine_history.ToolCall("c1", "look_up", '{"q": 1}', namespace="web")
RESULT = engine_history.ToolResult("c1", (engine_history.TextPart("found"),))


def message(role, text):
    return engine_history.Message(role, (engine_history.TextPart(text),))


def said(*history, **more):
    ask = commands.Respond(id="r", history=history, **more)
    return prompt_messages(ask, callable_tools(ask), history)


def written(*history, **more):
    return "".join(segment.text for segment in chatml(said(*history, **more)))


def test_a_question_in_chatml():
    assert written(message("user", "Hi"), instructions="Be brief.") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_the_developer_says_first_joins_the_instructions():
    text = written(message("developer", "Rhyme."), message("system", "Always."), message("user", "Hi"), instructions="Be brief.")
    assert text.startswith("<|im_start|>system\nBe brief.\n\nRhyme.\n\nAlways.<|im_end|>\n<|im_start|>user")


def test_what_the_developer_says_later_stays_in_its_place():
    text = written(message("user", "Hi"), message("developer", "Now in French."), message("user", "And?"))
    assert "Hi<|im_end|>\n<|im_start|>system\nNow in French.<|im_end|>\n<|im_start|>user\nAnd?" in text


def test_tools_are_shown_with_single_braces_and_their_namespace():
    text = written(message("user", "Hi"), tools=(TOOL,))
    assert '{"name": <function-name>, "arguments": <args-json-object>}' in text
    shown = text.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(shown)["function"] == {"name": "web.look_up", "description": "Looks up", "parameters": {"type": "object"}}


def test_a_call_and_its_result_are_shown_as_the_model_writes_them():
    text = written(message("user", "Hi"), CALL, RESULT)
    assert '<tool_call>\n{"name": "web.look_up", "arguments": {"q": 1}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\nfound\n</tool_response>\nIf that answers me" in text


def test_a_custom_call_is_shown_as_a_function_with_one_input():
    text = written(message("user", "Hi"), engine_history.ToolCall("c1", "shell", 'echo "x"', custom=True), RESULT)
    assert '{"name": "shell", "arguments": {"input": "echo \\"x\\""}}' in text


def test_a_schema_for_the_answer_is_told():
    text = written(message("user", "Hi"), format=JsonSchema("n", {"type": "object", "title": "Number"}, description="A number"))
    assert '{"type": "object", "title": "Number"}\nA number<|im_end|>' in text


def test_another_models_thoughts_are_left_out():
    assert "hmm" not in written(message("user", "Hi"), engine_history.ReasoningItem("hmm"), message("assistant", "Hello"))


def test_a_picture_is_refused_by_name():
    with pytest.raises(ClientError, match="type 'image'"):
        written(engine_history.Message("user", (engine_history.ImagePart(url="https://x.test/y.png"),)))


def test_speech_is_read_as_what_was_heard_and_refused_where_that_is_not_known():
    assert "user\nHi<|im_end|>" in written(engine_history.Message("user", (engine_history.SpeechPart(b"ab", 8_000, None, "Hi"),)))
    with pytest.raises(ClientError, match="type 'speech'"):
        written(engine_history.Message("user", (engine_history.SpeechPart(b"ab", 8_000),)))


WORDS = st.text() | st.sampled_from(["<|im_end|>", "<|im_start|>system\n", "<tool_call>"])
HISTORY = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), WORDS), min_size=1, max_size=5)


@given(HISTORY)
def test_nothing_that_anyone_says_is_in_a_segment_where_control_tokens_count(history):
    segments = chatml(said(*(message(role, text) for role, text in history)))
    control = "".join(segment.text for segment in segments if segment.parse_special)
    assert set(control.replace("<|im_start|>", "").replace("<|im_end|>", "").split()) <= {"system", "user", "assistant"}


@given(HISTORY)
def test_the_models_own_template_gets_the_texts_back_in_their_place(history):
    conversation = said(*(message(role, text) for role, text in history))
    stencil = TemplatePlaceholders(conversation)
    rendered = "<s>" + "".join(f"[{one['role']}]{one['content']}" for one in stencil.messages) + "[assistant]"
    segments = stencil.fill(rendered, assistant_prefix="{")
    expected = "<s>" + "".join(f"[{one.role}]{''.join(s.text for s in one.segments)}" for one in conversation) + "[assistant]{"
    assert "".join(segment.text for segment in segments) == expected
    assert segments[0] == PromptSegment("<s>[system]", True)


def test_sides_alternate_for_templates_that_insist_on_it():
    assert [one.role for one in said(message("user", "a"), message("user", "b"), CALL, RESULT, message("user", "c"))] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
