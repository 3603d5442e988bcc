"""The response machine: what opens, what closes, and what must hold whatever an engine says."""

import itertools
from typing import get_args

from hypothesis import given, strategies as st

from antiphon.engine_api import events as talk_events
from antiphon.protocols.output import (
    NOT_OF_AN_ANSWER,
    TAKES,
    CallGrew,
    Cited,
    Finished,
    Grew,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Response,
    Sounded,
)
from antiphon.protocols.output_table import MOVES, Move, Slot
from support.protocols.words import ID, any_sound, any_word, ending


def machine(**how):
    numbers = itertools.count(1)
    return Response(lambda prefix: f"{prefix}_{next(numbers)}", **how)


def played(*words, **how):
    response = machine(**how)
    return [step for word in words for step in response.take(word)]


SHOWN = {
    ItemAdded: lambda step: f"+{step.item.id}",
    PartAdded: lambda step: f"[{step.part.slot.value}",
    Grew: lambda step: f"{step.part.slot.value}{step.text!r}",
    Sounded: lambda step: f"~{len(step.pcm)}",
    CallGrew: lambda step: f"call{step.text!r}",
    Cited: lambda step: f"cite{step.index}",
    PartDone: lambda step: f"]{step.part.slot.value}",
    ItemDone: lambda step: f"-{step.item.id} {step.item.status}",
    Finished: lambda step: f"= {step.outcome}" + (f" {step.reason}" if step.reason else ""),
}


def told(steps):
    """The steps in short: `+msg_1`, `[text`, `text'Hi'`, `]text`, `-msg_1 completed`, `= completed`."""
    return [SHOWN[type(step)](step) for step in steps]


def test_text_opens_a_message_fills_it_and_closes_it_at_the_end():
    assert told(played(talk_events.Text(ID, "Hi"), talk_events.Text(ID, " you"), talk_events.Ended(ID))) == [
        "+msg_1",
        "[text",
        "text'Hi'",
        "text' you'",
        "]text",
        "-msg_1 completed",
        "= completed",
    ]


def test_reasoning_then_text_are_two_items():
    steps = played(talk_events.Reasoning(ID, "Hm."), talk_events.Sealed(ID, "xyz"), talk_events.Text(ID, "Hi"), talk_events.Ended(ID))
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
    assert [step.item.sealed for step in steps if isinstance(step, ItemDone)] == ["xyz", None]


def test_summaries_are_parts_of_one_reasoning_item_and_count_apart_from_its_content():
    words = (
        talk_events.Reasoning(ID, "raw"),
        talk_events.Reasoning(ID, "one", summary=True),
        talk_events.ReasoningBreak(ID),
        talk_events.Reasoning(ID, "two", summary=True),
        talk_events.Ended(ID),
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
    assert told(played(talk_events.Text(ID, "Well"), talk_events.Refusal(ID, "No."), talk_events.Ended(ID))) == [
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
        talk_events.Spoken(ID, "Hi"),
        talk_events.Sound(ID, bytes(4)),
        talk_events.Spoken(ID, " you"),
        talk_events.Sound(ID, bytes(2)),
        talk_events.Ended(ID),
    )
    assert told(played(*words, is_aloud=True)) == [
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
    words = talk_events.Sound(ID, b""), talk_events.Sound(ID, bytes(2)), talk_events.Ended(ID)
    assert told(played(*words, is_aloud=True)) == ["+msg_1", "[sound", "~2", "]sound", "-msg_1 completed", "= completed"]


def test_for_a_client_that_can_not_hear_what_is_spoken_is_text_and_sound_is_nothing():
    words = talk_events.Spoken(ID, "Hi"), talk_events.Sound(ID, bytes(4)), talk_events.Text(ID, "!"), talk_events.Ended(ID)
    assert told(played(*words)) == ["+msg_1", "[text", "text'Hi'", "text'!'", "]text", "-msg_1 completed", "= completed"]


def test_what_is_written_beside_what_is_said_is_another_part_of_the_message():
    words = talk_events.Text(ID, "a"), talk_events.Sound(ID, bytes(2)), talk_events.Text(ID, "b"), talk_events.Ended(ID)
    steps = played(*words, is_aloud=True)
    assert told(steps)[:9] == ["+msg_1", "[text", "text'a'", "]text", "[sound", "~2", "]sound", "[text", "text'b'"]
    assert [step.part.index for step in steps if isinstance(step, PartAdded)] == [0, 1, 2]


def test_a_call_in_the_middle_of_sound_closes_it_and_sound_after_a_call_is_another_message():
    words = talk_events.Sound(ID, bytes(2)), talk_events.Calling(ID, "a", "f"), talk_events.Sound(ID, bytes(2)), talk_events.Ended(ID)
    steps = told(played(*words, is_aloud=True))
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
    response = machine(is_aloud=True)
    response.take(talk_events.Sound(ID, bytes(2)))
    assert told(response.cancel()) == ["]sound", "-msg_1 incomplete", "= cancelled"]
    assert response.cancel() == []
    assert response.take(talk_events.Sound(ID, bytes(2))) == []


def test_an_answer_of_no_words_may_have_no_items():
    assert told(played(talk_events.Ended(ID), is_never_empty=False)) == ["= completed"]


def test_what_an_engine_says_of_what_it_hears_is_no_part_of_an_answer():
    words = talk_events.SpeechStarted(ID, 1), talk_events.HeardAll(id=ID, transcript="Hi"), talk_events.Trouble(message="ouch", id=ID)
    assert played(*words, is_aloud=True) == []


def test_calls_that_interleave_are_told_one_after_the_other():
    words = (
        talk_events.Calling(ID, "a", "f"),
        talk_events.Arguments(ID, "a", "{"),
        talk_events.Calling(ID, "b", "g"),
        talk_events.Arguments(ID, "b", "{}"),
        talk_events.Arguments(ID, "a", "}"),
        talk_events.Called(ID, "b"),
        talk_events.Called(ID, "a"),
        talk_events.Ended(ID),
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
        talk_events.Calling(ID, "a", "f"),
        talk_events.Calling(ID, "b", "g"),
        talk_events.Arguments(ID, "b", "{}"),
        talk_events.Ended(ID),
    )
    assert told(played(*words)) == ["+fc_1", "-fc_1 completed", "+fc_2", "call'{}'", "-fc_2 completed", "= completed"]


def test_arguments_for_a_call_that_is_over_break_the_answer():
    words = (
        talk_events.Calling(ID, "a", "f"),
        talk_events.Called(ID, "a"),
        talk_events.Arguments(ID, "a", "}"),
        talk_events.Text(ID, "more"),
    )
    steps = played(*words)
    assert told(steps) == ["+fc_1", "-fc_1 completed", "= failed"]
    assert "'a' went on after its end" in steps[-1].broke.message


def test_an_answer_of_no_words_is_an_empty_message():
    assert told(played(talk_events.Text(ID, ""), talk_events.Ended(ID))) == ["+msg_1", "[text", "]text", "-msg_1 completed", "= completed"]


def test_an_answer_cut_at_the_limit_leaves_its_last_item_incomplete():
    steps = played(talk_events.Reasoning(ID, "Hm"), talk_events.Text(ID, "Once"), talk_events.Ended(ID, "length"))
    assert told(steps)[-2:] == ["-msg_2 incomplete", "= incomplete max_output_tokens"]
    assert "-rs_1 completed" in told(steps)


def test_a_failure_closes_what_was_open_first():
    steps = played(talk_events.Text(ID, "On"), talk_events.Broke(id=ID, message="gone"))
    assert told(steps) == ["+msg_1", "[text", "text'On'", "]text", "-msg_1 incomplete", "= failed"]


def test_citations_count_within_their_part():
    steps = played(
        talk_events.Text(ID, "As said"),
        talk_events.Annotated(ID, {"type": "file_path"}),
        talk_events.Annotated(ID, {}),
        talk_events.Ended(ID),
    )
    assert told(steps)[3:5] == ["cite0", "cite1"]


def test_every_word_of_the_vocabulary_has_its_row():
    assert set(TAKES) | NOT_OF_AN_ANSWER == set(get_args(talk_events.FromEngine))


def test_the_table_of_moves_is_whole_and_keeps_parts_inside_items():
    assert set(MOVES) == set(Slot)
    has_part = {Slot.TEXT, Slot.SOUND, Slot.REFUSAL, Slot.THINKING, Slot.SUMMARY}
    for before, row in MOVES.items():
        assert set(row) == set(Slot)
        for after, moves in row.items():
            part, item = before in has_part, before is not Slot.NOTHING
            for move in moves:
                match move:
                    case Move.END_PART:
                        assert part
                        part = False
                    case Move.END_ITEM:
                        assert item and not part
                        item = False
                    case Move.ITEM:
                        assert not item
                        item = True
                    case Move.PART:
                        assert item and not part
                        part = True
            assert part == (after in has_part)
            assert item == (after is not Slot.NOTHING)


@given(st.lists(any_word | any_sound, max_size=30), ending, st.lists(any_word | any_sound, max_size=3), st.booleans())
def test_whatever_an_engine_says_items_nest_and_one_end_comes(words, end, after, is_aloud):
    steps = played(*words, end, *after, is_aloud=is_aloud)
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
            case Grew(item, part) | Cited(item, part) | Sounded(item, part):
                assert item is open_item
                assert part is open_part
            case CallGrew(item):
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
            case Finished():
                assert open_item is None
                ended += 1
    assert ended == 1
    assert [item.status for item in added[:-1]].count("incomplete") == 0 or steps[-1].outcome != "completed"


@given(st.lists(any_word | any_sound, max_size=30))
def test_what_is_said_aloud_is_told_in_order_with_the_words_before_their_sound(words):
    response = machine(is_aloud=True)
    steps = [step for word in [*words, talk_events.Ended(ID)] for step in response.take(word)]
    if steps[-1].outcome == "failed":
        return
    aloud = [
        word.text if isinstance(word, talk_events.Spoken) else word.pcm
        for word in words
        if isinstance(word, talk_events.Spoken | talk_events.Sound)
    ]
    heard = [step for step in steps if isinstance(step, Sounded) or (isinstance(step, Grew) and step.part.slot is Slot.SOUND)]
    assert [step.pcm if isinstance(step, Sounded) else step.text for step in heard] == [each for each in aloud if each]


@given(st.lists(any_word, max_size=30))
def test_every_character_said_is_told_once_and_in_order(words):
    response = machine()
    steps = [step for word in [*words, talk_events.Ended(ID)] for step in response.take(word)]
    if steps[-1].outcome == "failed":
        return
    for kind, slot in ((talk_events.Text, Slot.TEXT), (talk_events.Refusal, Slot.REFUSAL)):
        said = "".join(word.text for word in words if type(word) is kind)
        assert "".join(step.text for step in steps if isinstance(step, Grew) and step.part.slot is slot) == said
        assert "".join(part.text for item in response.items for part in item.parts if part.slot is slot) == said
    for call_id in ("c1", "c2", "c3"):
        said = "".join(word.text for word in words if isinstance(word, talk_events.Arguments) and word.call_id == call_id)
        assert "".join(item.arguments for item in response.items if item.call and item.call.call_id == call_id) == said
