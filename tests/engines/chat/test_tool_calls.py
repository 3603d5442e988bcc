"""Tool calls out of whatever servers make of them: their arguments arrive as they were meant, each under its own call."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from antiphon.engine_api import events
from antiphon.engine_api.options import FunctionTool
from antiphon.engines.chat.tool_calls import FreeTextExtractor, ToolCallAssembler
from antiphon.errors import UpstreamError
from antiphon.wire.upstream import chat_completions

NAMES = ["get", "get_weather", "get_time", "weather", "a", "tool__shell"]
OFFERED = {name: FunctionTool(name) for name in NAMES}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)
ANY = settings(max_examples=2 * settings.default.max_examples)


def pieces(data, text):
    """Text cut anywhere, in at most five pieces."""
    places = sorted({place for place in data.draw(st.lists(st.integers(1, max(len(text), 1)), max_size=4)) if place < len(text)})
    bounds = [0, *places, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def parts(index, id, name, cuts, *, repeats_name=False, repeats_id=False, empty_name=False, is_late=False):
    """A call as some server streams it."""
    told = []
    for number, text in enumerate(cuts):
        is_first = number == 0
        shown = name if is_first or repeats_name else "" if empty_name else None
        own = id if (is_first != is_late) or repeats_id else None
        told.append({"index": index, "id": own, "function": {"name": shown, "arguments": text}})
    if is_late and len(cuts) == 1:
        told[0]["id"] = id
    return told


def called(told, offered=OFFERED):
    """The names and arguments that the parts of calls mean, in order."""
    calls, words = ToolCallAssembler("resp_1", offered), []
    for part in told:
        calls.add(msgspec.convert(part, chat_completions.ToolCall), words)
    calls.close(words)
    found, over = {}, set()
    for word in words:
        match word:
            case events.ToolCallStarted():
                assert word.call_id not in found
                found[word.call_id] = [word.name, ""]
            case events.ToolArgumentsDelta():
                assert word.call_id not in over
                found[word.call_id][1] += word.text
            case events.ToolCallDone():
                over.add(word.call_id)
    assert over == found.keys()
    return [tuple(call) for call in found.values()]


@ANY
@given(st.data())
def test_arguments_joined_are_those_sent_however_a_server_tells_its_calls_apart(data):
    meant = data.draw(st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS.map(json.dumps)), min_size=1, max_size=4))
    apart = data.draw(st.sampled_from(["index", "id", "both", "index and late id"]))
    flags = {flag: data.draw(st.booleans()) for flag in ("repeats_name", "repeats_id", "empty_name")}
    told = []
    for number, (name, arguments) in enumerate(meant):
        index = {"id": data.draw(st.sampled_from([0, None]))}.get(apart, number)
        id = None if apart == "index" else f"call_{number}"
        flags["is_late"] = apart == "index and late id"
        told += parts(index, id, name, pieces(data, arguments), **flags)
    assert called(told) == meant


@ANY
@given(st.data())
def test_calls_that_nothing_tells_apart_are_told_apart_when_each_comes_whole(data):
    meant = data.draw(st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS.map(json.dumps)), min_size=1, max_size=4))
    index, id = data.draw(st.sampled_from([0, None])), data.draw(st.sampled_from(["", None]))
    assert called([part for name, arguments in meant for part in parts(index, id, name, [arguments])]) == meant


@ANY
@given(st.data())
def test_a_name_in_pieces_is_put_together(data):
    name = data.draw(st.sampled_from(["get_weather", "tool__shell", "unknown_one"]))
    told = [
        {"index": 0, "id": "c" if number == 0 else None, "function": {"name": piece}} for number, piece in enumerate(pieces(data, name))
    ]
    told.append({"index": 0, "function": {"arguments": "{}"}})
    assert called(told, {name: FunctionTool(name) for name in ("get_weather", "tool__shell")}) == [(name, "{}")]


def test_a_name_that_grows_is_the_longest_of_it():
    told = [{"index": 0, "id": "c", "function": {"name": name}} for name in ("get", "get_wea", "get_weather")]
    assert called([*told, {"index": 0, "function": {"arguments": "{}"}}]) == [("get_weather", "{}")]


def test_a_call_of_no_arguments_is_a_call():
    assert called([{"index": 0, "id": "c", "function": {"name": "a"}}, {"index": 1, "id": "d", "function": {"name": "get"}}]) == [
        ("a", "{}"),
        ("get", "{}"),
    ]


def test_a_call_of_no_arguments_that_was_cut_off_has_none():
    calls, words = ToolCallAssembler("resp_1", OFFERED), []
    calls.add(msgspec.convert({"index": 0, "id": "c", "function": {"name": "a"}}, chat_completions.ToolCall), words)
    calls.close(words, is_complete=False)
    assert words == [events.ToolCallStarted("resp_1", "c", "a")]


def test_calls_that_a_server_mixes_are_put_together_again():
    told = [
        {"index": 0, "id": "c", "function": {"name": "get", "arguments": '{"x"'}},
        {"index": 1, "id": "d", "function": {"name": "a", "arguments": ""}},
        {"index": 0, "function": {"arguments": ":1"}},
        {"index": 1, "function": {"arguments": '{"y":'}},
        {"index": 0, "function": {"arguments": "}"}},
        {"index": 1, "function": {"arguments": "2}"}},
    ]
    assert called(told) == [("get", '{"x":1}'), ("a", '{"y":2}')]


def test_a_call_that_takes_the_place_of_one_left_off_ends_it():
    told = [
        {"index": 0, "id": "c", "function": {"name": "get", "arguments": '{"x"'}},
        {"index": 1, "id": "d", "function": {"name": "a", "arguments": "{}"}},
        {"index": 0, "id": "e", "function": {"name": "a", "arguments": "{}"}},
    ]
    assert called(told) == [("get", '{"x"'), ("a", "{}"), ("a", "{}")]


def test_a_call_that_goes_on_when_it_was_whole_is_invalid():
    told = [{"index": number, "id": f"c{number}", "function": {"name": "get", "arguments": "{}"}} for number in range(2)]
    with pytest.raises(UpstreamError, match="sent an invalid tool call: number 0 continued after its end"):
        called([*told, {"index": 0, "function": {"arguments": "x"}}])


def test_a_name_that_comes_after_the_arguments_began_is_waited_for():
    told = [{"index": 0, "id": "c", "function": {"arguments": '{"x"'}}, {"index": 0, "function": {"name": "get", "arguments": ":1}"}}]
    assert called(told) == [("get", '{"x":1}')]


def test_a_call_that_is_never_named_is_no_answer():
    with pytest.raises(UpstreamError, match="sent an invalid tool call: it has no name"):
        called([{"index": 0, "id": "c", "function": {"arguments": "{}"}}])


def test_an_id_that_clients_could_not_give_back_is_replaced():
    calls, words = ToolCallAssembler("resp_1", OFFERED), []
    calls.add(msgspec.convert({"id": "c" * 65, "function": {"name": "a", "arguments": "{}"}}, chat_completions.ToolCall), words)
    assert words[0] == events.ToolCallStarted("resp_1", "call_11", "a")


def test_an_id_that_comes_twice_is_not_given_twice():
    calls, words = ToolCallAssembler("resp_1", OFFERED), []
    for index in (0, 1):
        calls.add(
            msgspec.convert({"index": index, "id": "same", "function": {"name": "a", "arguments": "{}"}}, chat_completions.ToolCall), words
        )
    calls.close(words)
    ids = [word.call_id for word in words if isinstance(word, events.ToolCallStarted)]
    assert len(set(ids)) == 2
    assert ids[0] == "same"


def test_what_is_no_call_says_nothing():
    assert called([{"index": 0}, {"index": 1, "function": {}}]) == []


# A custom tool's free text


def unwrapped(data, text):
    free = FreeTextExtractor()
    return "".join(free.feed(piece) for piece in pieces(data, text)) + free.end()


@ANY
@given(st.data(), st.text(st.characters(codec="utf-8")), st.booleans(), st.sampled_from(["", " ", "\n\t "]))
def test_free_text_is_unwrapped_wherever_its_json_is_cut(data, text, is_ascii, space):
    wrapped = f'{space}{{{space}"input"{space}:{space}{json.dumps(text, ensure_ascii=is_ascii)}{space}}}{space}'
    assert unwrapped(data, wrapped) == text


@ANY
@given(st.data(), st.text(st.characters(codec="utf-8"), max_size=20), st.dictionaries(st.sampled_from(["note", "x"]), JSON, max_size=2))
def test_what_stands_beside_the_text_is_left_out(data, text, others):
    assert unwrapped(data, json.dumps({"input": text} | others)) == text
    assert unwrapped(data, json.dumps(others | {"input": text})) == text


@ANY
@given(st.data(), st.text(st.characters(codec="utf-8"), max_size=60))
def test_text_that_is_wrapped_in_nothing_stays_as_it_is(data, text):
    try:
        json.loads(text, strict=False)
    except ValueError:
        if not text.lstrip().startswith("{"):
            assert unwrapped(data, text) == text


@ANY
@given(st.data(), st.text(max_size=40))
def test_any_text_at_all_is_taken_and_none_of_it_is_unsound(data, text):
    for wrapped in (text, '{"input": "' + text, '{"input": "\\ud83d' + text, '{"input": "\\u12' + text):
        unwrapped(data, wrapped).encode()


def test_the_other_names_that_models_give_the_text_are_taken():
    assert FreeTextExtractor().feed("") == ""
    for wrapped in ('{"patch": "x"}', '"x"'):
        free = FreeTextExtractor()
        assert free.feed(wrapped) + free.end() == "x"
