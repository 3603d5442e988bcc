"""What a model's words amount to: calls where they are calls, text at once where they are not."""

import json

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import commands, events
from antiphon.engine_api.options import CustomTool, FunctionTool
from antiphon.engines.local.json_schema import OutputSchema
from antiphon.engines.local.output_parser import ForcedCallParser, JsonFormatParser, JsonObjectScanner, TextParser, ToolCallDetector
from antiphon.engines.local.tool_grammar import callable_tools
from antiphon.errors import ClientError

WEATHER = FunctionTool(
    "get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
)
SHELL = CustomTool("shell")
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


def offered(*tools):
    return callable_tools(commands.Respond(id="r", history=(), tools=tools))


def minted():
    numbers = iter(range(1, 100))
    return lambda: f"call_{next(numbers)}"


def sniffing(*tools, parallel=True):
    return ToolCallDetector("r", offered(*(tools or (WEATHER, SHELL))), parallel, TextParser("r"), minted())


def read(reader, *pieces, cut=False):
    """The words, with neighbouring texts and arguments joined."""
    words = [word for piece in pieces for word in reader.feed(piece)] + reader.finish(cut)
    joined = []
    for word in words:
        if joined and type(joined[-1]) is type(word) and isinstance(word, events.TextDelta | events.ToolArgumentsDelta):
            before = joined.pop()
            word = _join(before, word)
        joined.append(word)
    return joined


def _join(before, word):
    if isinstance(word, events.TextDelta):
        return events.TextDelta(word.id, before.text + word.text, before.logprobs + word.logprobs)
    return events.ToolArgumentsDelta(word.id, word.call_id, before.text + word.text)


def calling(name, arguments, number=1, custom=False):
    call_id = f"call_{number}"
    return [
        events.ToolCallStarted("r", call_id, name, custom=custom),
        events.ToolArgumentsDelta("r", call_id, arguments),
        events.ToolCallDone("r", call_id),
    ]


PARIS = calling("get_weather", '{"city": "Paris"}')


@pytest.mark.parametrize(
    "written",
    [
        CALL,
        f"\n  {CALL}",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tools>\n{CALL}\n</tools>",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```",
        '{ "name" : "get_weather",\n "arguments" : { "city" : "Paris" } }',
        '{"arguments": {"city": "Paris"}, "name": "get_weather"}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
    ],
)
def test_a_call_is_recognised_in_every_dress_that_models_give_it(written):
    assert read(sniffing(), written) == PARIS
    assert read(sniffing(), *written) == PARIS


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "William Shakespeare", "arguments": null}',
        '{"name": "get_weather", "arguments": {"town": "Paris"}}',
        '{"name": "get_weather", "arguments": {"city": 5}}',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"name": "get_weather"}',
        '{"answer": 42}',
        '```json\n{"answer": 42}\n```',
        "```python\nprint(1)\n```",
        "<tool_call> is a tag",
        '{"name": "get_weather", "arguments": {"city": "Par',
        "{",
        "   ",
    ],
)
def test_what_only_looks_like_a_call_is_text(written):
    assert read(sniffing(), written) == [events.TextDelta("r", written)]
    assert read(sniffing(), *written) == [events.TextDelta("r", written)]


@pytest.mark.parametrize("text", ["Hello", "2 plus 2", "[1]", "`code`", '{"answer"', "<b>"])
def test_text_that_does_not_look_like_a_call_is_passed_on_at_once(text):
    assert sniffing().feed(text) == [events.TextDelta("r", text)]


def test_in_the_middle_of_text_only_a_possible_mark_is_held_back():
    reader = sniffing()
    assert reader.feed("It is 3 <") == [events.TextDelta("r", "It is 3 ")]
    assert reader.feed(" 5.") == [events.TextDelta("r", "< 5.")]


def test_a_call_after_some_words_is_a_call():
    assert read(sniffing(), f"Let me look. <tool_call>\n{CALL}\n</tool_call>") == [events.TextDelta("r", "Let me look. "), *PARIS]


def test_calls_in_a_row_are_all_kept():
    oslo = CALL.replace("Paris", "Oslo")
    written = f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{oslo}\n</tool_call>"
    assert read(sniffing(), *written) == [*PARIS, *calling("get_weather", '{"city": "Oslo"}', 2)]


def test_without_parallel_calls_only_the_first_is_kept():
    reader = sniffing(parallel=False)
    assert read(reader, f"{CALL}\n{CALL}") == PARIS
    assert reader.is_done


def test_chatter_after_a_call_is_dropped_and_ends_the_answer():
    reader = sniffing()
    assert read(reader, f"{CALL}\nThe weather is", " fine") == PARIS
    assert reader.is_done


def test_a_custom_tool_gets_its_input_unwrapped():
    written = json.dumps({"name": "shell", "arguments": {"input": 'echo "hi"'}})
    assert read(sniffing(), *written) == calling("shell", 'echo "hi"', custom=True)


def test_log_probabilities_of_text_that_was_held_back_come_with_it():
    first, second = (events.TokenLogprob(events.TokenCandidate(token, -1.0)) for token in ('{"', "x"))
    reader = sniffing()
    assert reader.feed('{"', [first]) == []
    assert reader.feed("x", [second]) == [events.TextDelta("r", '{"x', (first, second))]


def test_an_object_that_never_closes_is_given_up_for_text():
    reader = sniffing()
    endless = '{"name": "get_weather", "arguments": {"city": "' + "a" * 40_000
    assert "".join(word.text for word in reader.feed(endless)) == endless


@given(
    st.lists(st.sampled_from(["<tool_call>", "\n", "{", "}", CALL, "```json", "```", "</tool_call>", "a", '"', '{"name":', " "])), st.data()
)
def test_however_the_words_are_cut_they_amount_to_the_same(written, data):
    text = "".join(written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(sniffing(), text)
    assert read(sniffing(), *pieces) == whole
    if not any(isinstance(word, events.ToolCallStarted) for word in whole):
        assert "".join(word.text for word in whole) == text


def test_a_forced_call_passes_its_arguments_on_as_they_come():
    reader = ForcedCallParser("r", offered(WEATHER), minted())
    assert reader.feed('{"name": "get_wea') == []
    assert reader.feed('ther", "arguments": {"ci') == [
        events.ToolCallStarted("r", "call_1", "get_weather"),
        events.ToolArgumentsDelta("r", "call_1", '{"ci'),
    ]
    assert reader.feed('ty": "}"}') == [events.ToolArgumentsDelta("r", "call_1", 'ty": "}"}'), events.ToolCallDone("r", "call_1")]
    assert reader.is_done and reader.feed("}") == []


def test_a_forced_call_of_a_custom_tool_gives_its_input_whole():
    written = '{"name": "shell", "arguments": {"input": "ls\\n"}}'
    assert read(ForcedCallParser("r", offered(SHELL, WEATHER), minted()), *written) == calling("shell", "ls\n", custom=True)


def test_a_forced_call_that_was_cut_off_is_not_called():
    words = read(ForcedCallParser("r", offered(WEATHER), minted()), '{"name": "get_weather", "arguments": {"city"', cut=True)
    assert words == [events.ToolCallStarted("r", "call_1", "get_weather"), events.ToolArgumentsDelta("r", "call_1", '{"city"')]


def test_a_model_that_is_not_held_to_the_call_is_noticed():
    with pytest.raises(ClientError, match="could not be held"):
        ForcedCallParser("r", offered(WEATHER)).feed("Sure!")


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_text_in_a_format_is_passed_on_and_checked_at_the_end():
    assert read(JsonFormatParser("r", OutputSchema(NUMBER), True), '{"n":', " 1}") == [events.TextDelta("r", '{"n": 1}')]
    with pytest.raises(ClientError) as raised:
        read(JsonFormatParser("r", OutputSchema(NUMBER), True), '{"n": "one"}')
    assert raised.value.param == "text.format.schema"


def test_a_constraint_that_was_dropped_is_noticed_at_the_first_word():
    with pytest.raises(ClientError, match="could not be held"):
        JsonFormatParser("r", OutputSchema(NUMBER), False).feed("-out")


def test_text_in_a_format_that_was_cut_off_is_nobodys_fault():
    assert read(JsonFormatParser("r", OutputSchema(NUMBER), True), '{"n":', cut=True) == [events.TextDelta("r", '{"n":')]


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10),
    st.text(),
    st.data(),
)
def test_the_end_of_an_object_is_found_wherever_it_is_cut(value, after, data):
    text = json.dumps({"key": value}, ensure_ascii=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(text) - 1))
    end = JsonObjectScanner()
    assert end.feed(text[:cut]) is None
    assert end.feed(text[cut:] + after) == len(text) - cut
