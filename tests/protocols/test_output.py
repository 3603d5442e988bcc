"""The response machine: what opens, what closes, and its invariants for any engine events."""

import itertools
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import events
from antiphon.protocols.output import (
    EVENT_HANDLERS,
    NON_RESPONSE_EVENTS,
    AnnotationAppended,
    ArgumentsAppended,
    AudioAppended,
    ItemAdded,
    ItemDone,
    OutputFinished,
    OutputMachine,
    PartAdded,
    PartDone,
    TextAppended,
)
from antiphon.protocols.output_table import OUTPUT_TRANSITIONS, OutputAction, OutputKind
from support.protocols.words import ID, any_sound, any_word, ending


def machine(**how):
    numbers = itertools.count(1)
    return OutputMachine(lambda prefix: f"{prefix}_{next(numbers)}", **how)


def played(*words, **how):
    response = machine(**how)
    return [step for word in words for step in response.apply(word)]


SHOWN = {
    ItemAdded: lambda step: f"+{step.item.id}",
    PartAdded: lambda step: f"[{step.part.kind.value}",
    TextAppended: lambda step: f"{step.part.kind.value}{step.text!r}",
    AudioAppended: lambda step: f"~{len(step.pcm)}",
    ArgumentsAppended: lambda step: f"call{step.text!r}",
    AnnotationAppended: lambda step: f"cite{step.index}",
    PartDone: lambda step: f"]{step.part.kind.value}",
    ItemDone: lambda step: f"-{step.item.id} {step.item.status}",
    OutputFinished: lambda step: f"= {step.outcome}" + (f" {step.reason}" if step.reason else ""),
}


def told(steps):
    """The steps in short: `+msg_1`, `[text`, `text'Hi'`, `]text`, `-msg_1 completed`, `= completed`."""
    return [SHOWN[type(step)](step) for step in steps]


def test_text_opens_a_message_fills_it_and_closes_it_at_the_end():
    assert told(played(events.TextDelta(ID, "Hi"), events.TextDelta(ID, " you"), events.ResponseEnded(ID))) == [
        "+msg_1",
        "[text",
        "text'Hi'",
        "text' you'",
        "]text",
        "-msg_1 completed",
        "= completed",
    ]


def test_reasoning_then_text_are_two_items():
    steps = played(
        events.ReasoningDelta(ID, "Hm."), events.EncryptedReasoning(ID, "xyz"), events.TextDelta(ID, "Hi"), events.ResponseEnded(ID)
    )
    assert told(steps) == [
        "+rs_1",
        "[thinking",
        "thinking'Hm.'",
        "]thinking",
        "-rs_1 completed",
        "+msg_2",
        "[text",
        "text'Hi'",
        "]text",
        "-msg_2 completed",
        "= completed",
    ]
    assert [step.item.encrypted_content for step in steps if isinstance(step, ItemDone)] == ["xyz", None]


def test_summaries_are_parts_of_one_reasoning_item_and_count_apart_from_its_content():
    words = (
        events.ReasoningDelta(ID, "raw"),
        events.ReasoningDelta(ID, "one", summary=True),
        events.ReasoningBoundary(ID),
        events.ReasoningDelta(ID, "two", summary=True),
        events.ResponseEnded(ID),
    )
    steps = played(*words)
    assert told(steps) == [
        "+rs_1",
        "[thinking",
        "thinking'raw'",
        "]thinking",
        "[summary",
        "summary'one'",
        "]summary",
        "[summary",
        "summary'two'",
        "]summary",
        "-rs_1 completed",
        "= completed",
    ]
    assert [step.part.index for step in steps if isinstance(step, PartAdded)] == [0, 0, 1]


def test_a_refusal_after_text_is_another_part_of_the_same_message():
    assert told(played(events.TextDelta(ID, "Well"), events.RefusalDelta(ID, "No."), events.ResponseEnded(ID))) == [
        "+msg_1",
        "[text",
        "text'Well'",
        "]text",
        "[refusal",
        "refusal'No.'",
        "]refusal",
        "-msg_1 completed",
        "= completed",
    ]


def test_words_said_aloud_and_their_sound_are_one_part():
    words = (
        events.AudioTranscriptDelta(ID, "Hi"),
        events.AudioDelta(ID, bytes(4)),
        events.AudioTranscriptDelta(ID, " you"),
        events.AudioDelta(ID, bytes(2)),
        events.ResponseEnded(ID),
    )
    assert told(played(*words, is_spoken=True)) == [
        "+msg_1",
        "[sound",
        "sound'Hi'",
        "~4",
        "sound' you'",
        "~2",
        "]sound",
        "-msg_1 completed",
        "= completed",
    ]


def test_sound_may_come_before_any_word_and_no_sound_is_none():
    words = events.AudioDelta(ID, b""), events.AudioDelta(ID, bytes(2)), events.ResponseEnded(ID)
    assert told(played(*words, is_spoken=True)) == ["+msg_1", "[sound", "~2", "]sound", "-msg_1 completed", "= completed"]


def test_for_a_client_that_can_not_hear_what_is_spoken_is_text_and_sound_is_nothing():
    words = events.AudioTranscriptDelta(ID, "Hi"), events.AudioDelta(ID, bytes(4)), events.TextDelta(ID, "!"), events.ResponseEnded(ID)
    assert told(played(*words)) == ["+msg_1", "[text", "text'Hi'", "text'!'", "]text", "-msg_1 completed", "= completed"]


def test_what_is_written_beside_what_is_said_is_another_part_of_the_message():
    words = events.TextDelta(ID, "a"), events.AudioDelta(ID, bytes(2)), events.TextDelta(ID, "b"), events.ResponseEnded(ID)
    steps = played(*words, is_spoken=True)
    assert told(steps)[:9] == ["+msg_1", "[text", "text'a'", "]text", "[sound", "~2", "]sound", "[text", "text'b'"]
    assert [step.part.index for step in steps if isinstance(step, PartAdded)] == [0, 1, 2]


def test_a_call_in_the_middle_of_sound_closes_it_and_sound_after_a_call_is_another_message():
    words = events.AudioDelta(ID, bytes(2)), events.ToolCallStarted(ID, "a", "f"), events.AudioDelta(ID, bytes(2)), events.ResponseEnded(ID)
    steps = told(played(*words, is_spoken=True))
    assert steps == [
        "+msg_1",
        "[sound",
        "~2",
        "]sound",
        "-msg_1 completed",
        "+fc_2",
        "-fc_2 completed",
        "+msg_3",
        "[sound",
        "~2",
        "]sound",
        "-msg_3 completed",
        "= completed",
    ]


def test_an_answer_cut_off_in_the_middle_of_sound_closes_it():
    response = machine(is_spoken=True)
    response.apply(events.AudioDelta(ID, bytes(2)))
    assert told(response.cancel()) == ["]sound", "-msg_1 incomplete", "= cancelled"]
    assert response.cancel() == []
    assert response.apply(events.AudioDelta(ID, bytes(2))) == []


def test_an_answer_of_no_words_may_have_no_items():
    assert told(played(events.ResponseEnded(ID), requires_item=False)) == ["= completed"]


def test_what_an_engine_says_of_what_it_hears_is_no_part_of_an_answer():
    words = events.SpeechStarted(ID, 1), events.InputTranscriptDone(id=ID, transcript="Hi"), events.EngineError(message="ouch", id=ID)
    assert played(*words, is_spoken=True) == []


def test_calls_that_interleave_are_told_one_after_the_other():
    words = (
        events.ToolCallStarted(ID, "a", "f"),
        events.ToolArgumentsDelta(ID, "a", "{"),
        events.ToolCallStarted(ID, "b", "g"),
        events.ToolArgumentsDelta(ID, "b", "{}"),
        events.ToolArgumentsDelta(ID, "a", "}"),
        events.ToolCallDone(ID, "b"),
        events.ToolCallDone(ID, "a"),
        events.ResponseEnded(ID),
    )
    assert told(played(*words)) == [
        "+fc_1",
        "call'{'",
        "call'}'",
        "-fc_1 completed",
        "+fc_2",
        "call'{}'",
        "-fc_2 completed",
        "= completed",
    ]


def test_calls_that_never_say_that_they_are_complete_are_so_at_the_end():
    words = (
        events.ToolCallStarted(ID, "a", "f"),
        events.ToolCallStarted(ID, "b", "g"),
        events.ToolArgumentsDelta(ID, "b", "{}"),
        events.ResponseEnded(ID),
    )
    assert told(played(*words)) == ["+fc_1", "-fc_1 completed", "+fc_2", "call'{}'", "-fc_2 completed", "= completed"]


def test_arguments_for_a_call_that_is_over_break_the_answer():
    words = (
        events.ToolCallStarted(ID, "a", "f"),
        events.ToolCallDone(ID, "a"),
        events.ToolArgumentsDelta(ID, "a", "}"),
        events.TextDelta(ID, "more"),
    )
    steps = played(*words)
    assert told(steps) == ["+fc_1", "-fc_1 completed", "= failed"]
    assert "sent an invalid tool call: 'a' continued after its end" in steps[-1].failure.message


def test_an_answer_of_no_words_is_an_empty_message():
    assert told(played(events.TextDelta(ID, ""), events.ResponseEnded(ID))) == [
        "+msg_1",
        "[text",
        "]text",
        "-msg_1 completed",
        "= completed",
    ]


def test_an_answer_cut_at_the_limit_leaves_its_last_item_incomplete():
    steps = played(events.ReasoningDelta(ID, "Hm"), events.TextDelta(ID, "Once"), events.ResponseEnded(ID, "length"))
    assert told(steps)[-2:] == ["-msg_2 incomplete", "= incomplete max_output_tokens"]
    assert "-rs_1 completed" in told(steps)


def test_a_failure_closes_what_was_open_first():
    steps = played(events.TextDelta(ID, "On"), events.ResponseFailed(id=ID, message="gone"))
    assert told(steps) == ["+msg_1", "[text", "text'On'", "]text", "-msg_1 incomplete", "= failed"]


def test_citations_count_within_their_part():
    steps = played(
        events.TextDelta(ID, "As said"),
        events.AnnotationAdded(ID, {"type": "file_path"}),
        events.AnnotationAdded(ID, {}),
        events.ResponseEnded(ID),
    )
    assert told(steps)[3:5] == ["cite0", "cite1"]


def test_every_word_of_the_vocabulary_has_its_row():
    assert set(EVENT_HANDLERS) | NON_RESPONSE_EVENTS == set(get_args(events.EngineEvent))


def test_the_table_of_moves_is_whole_and_keeps_parts_inside_items():
    assert set(OUTPUT_TRANSITIONS) == set(OutputKind)
    has_part = {OutputKind.TEXT, OutputKind.AUDIO, OutputKind.REFUSAL, OutputKind.REASONING_TEXT, OutputKind.REASONING_SUMMARY}
    for before, row in OUTPUT_TRANSITIONS.items():
        assert set(row) == set(OutputKind)
        for after, moves in row.items():
            part, item = before in has_part, before is not OutputKind.NONE
            for move in moves:
                match move:
                    case OutputAction.END_PART:
                        assert part
                        part = False
                    case OutputAction.END_ITEM:
                        assert item and not part
                        item = False
                    case OutputAction.BEGIN_ITEM:
                        assert not item
                        item = True
                    case OutputAction.BEGIN_PART:
                        assert item and not part
                        part = True
            assert part == (after in has_part)
            assert item == (after is not OutputKind.NONE)


@given(st.lists(any_word | any_sound, max_size=30), ending, st.lists(any_word | any_sound, max_size=3), st.booleans())
def test_whatever_an_engine_says_items_nest_and_one_end_comes(words, end, after, is_spoken):
    steps = played(*words, end, *after, is_spoken=is_spoken)
    open_item, open_part, added, ended = None, None, [], 0
    for step in steps:
        assert not ended, "nothing follows the end"
        match step:
            case ItemAdded(item):
                assert open_item is None
                assert item.index == len(added)
                open_item = item
                added.append(item)
            case PartAdded(item, part):
                assert item is open_item
                assert open_part is None
                open_part = part
            case TextAppended(item, part) | AnnotationAppended(item, part) | AudioAppended(item, part):
                assert item is open_item
                assert part is open_part
            case ArgumentsAppended(item):
                assert item is open_item
                assert item.call is not None
            case PartDone(item, part):
                assert item is open_item
                assert part is open_part
                open_part = None
            case ItemDone(item):
                assert item is open_item
                assert open_part is None
                open_item = None
            case OutputFinished():
                assert open_item is None
                ended += 1
    assert ended == 1
    assert [item.status for item in added[:-1]].count("incomplete") == 0 or steps[-1].outcome != "completed"


@given(st.lists(any_word | any_sound, max_size=30))
def test_what_is_said_aloud_is_told_in_order_with_the_words_before_their_sound(words):
    response = machine(is_spoken=True)
    steps = [step for word in [*words, events.ResponseEnded(ID)] for step in response.apply(word)]
    if steps[-1].outcome == "failed":
        return
    aloud = [
        word.text if isinstance(word, events.AudioTranscriptDelta) else word.pcm
        for word in words
        if isinstance(word, events.AudioTranscriptDelta | events.AudioDelta)
    ]
    heard = [
        step for step in steps if isinstance(step, AudioAppended) or (isinstance(step, TextAppended) and step.part.kind is OutputKind.AUDIO)
    ]
    assert [step.pcm if isinstance(step, AudioAppended) else step.text for step in heard] == [each for each in aloud if each]


@pytest.mark.parametrize("event", [events.ToolArgumentsDelta(ID, "c2", "a"), events.ToolCallStarted(ID, "c2", "f")])
def test_a_call_that_waits_for_another_can_not_go_on_after_its_end(event):
    response = machine()
    for word in (events.ToolCallStarted(ID, "c1", "f"), events.ToolCallStarted(ID, "c2", "f"), events.ToolCallDone(ID, "c2")):
        response.apply(word)
    assert response.apply(event)[-1].outcome == "failed"


@given(st.lists(any_word, max_size=30))
def test_every_character_said_is_told_once_and_in_order(words):
    response = machine()
    steps = [step for word in [*words, events.ResponseEnded(ID)] for step in response.apply(word)]
    if steps[-1].outcome == "failed":
        return
    for kind, slot in ((events.TextDelta, OutputKind.TEXT), (events.RefusalDelta, OutputKind.REFUSAL)):
        said = "".join(word.text for word in words if type(word) is kind)
        assert "".join(step.text for step in steps if isinstance(step, TextAppended) and step.part.kind is slot) == said
        assert "".join(part.text for item in response.items for part in item.parts if part.kind is slot) == said
    for call_id in ("c1", "c2", "c3"):
        said = "".join(word.text for word in words if isinstance(word, events.ToolArgumentsDelta) and word.call_id == call_id)
        assert "".join(item.arguments for item in response.items if item.call and item.call.call_id == call_id) == said
