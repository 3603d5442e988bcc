"""Where an answer was interrupted, and how much of it was heard."""

import msgspec
import pytest

from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.transcript import Interruption, read_timed_turns, read_turns, render_text, word_start

RATE_HZ = 24_000
CREATED = (0.0, "out", {"type": "session.created", "session": {"id": "sess_1"}})
BEGUN = (1.0, "out", {"type": "response.created", "response": {"id": "resp_1"}})
ONE_TWO = "One two. "
THREE_FOUR = "Three four."


def media(direction, from_ms, to_ms, rate_hz=RATE_HZ):
    offset, end = (at_ms * rate_hz // 1000 * 2 for at_ms in (from_ms, to_ms))
    return {"$media": f"{direction}.wav", "offset": offset, "bytes": end - offset, "form": "pcm"}


def words(at_s, text):
    return at_s, "out", {"type": "response.output_audio_transcript.delta", "response_id": "resp_1", "item_id": "item_1", "delta": text}


def sound(at_s, from_ms, to_ms):
    delta = media("out", from_ms, to_ms)
    return at_s, "out", {"type": "response.output_audio.delta", "response_id": "resp_1", "item_id": "item_1", "delta": delta}


def done(at_s, status):
    return at_s, "out", {"type": "response.done", "response": {"id": "resp_1", "status": status}}


def truncated(at_s, heard_ms):
    return at_s, "out", {"type": "conversation.item.truncated", "item_id": "item_1", "content_index": 0, "audio_end_ms": heard_ms}


SPOKEN = (CREATED, BEGUN, words(1.1, ONE_TWO), sound(1.2, 0, 1000), words(1.2, THREE_FOUR), sound(1.2, 1000, 3000))


def lines(*events):
    return [EventLine(seq, at_s, direction, event) for seq, (at_s, direction, event) in enumerate(events, start=1)]


def only_turn(*events):
    (turn,) = read_turns(lines(*events))
    return turn


def test_an_answer_that_was_heard_to_its_end_is_not_interrupted():
    turn = only_turn(*SPOKEN, done(1.3, "completed"))
    assert turn.interrupted is None and render_text(turn) == ONE_TWO + THREE_FOUR


def test_a_cancelled_answer_was_heard_up_to_then():
    turn = only_turn(*SPOKEN, done(2.7, "cancelled"))
    assert turn.interrupted == Interruption(at_s=2.7, heard_ms=1500.0, heard="One two.")
    assert turn.text == ONE_TWO + THREE_FOUR and turn.reason == "cancelled"
    assert render_text(turn) == "One two. [interrupted at 2.70 s, after 1.50 s of sound; not heard: Three four.]"


def test_a_complete_answer_that_the_client_stopped_playing_is_interrupted_where_it_says():
    turn = only_turn(*SPOKEN, done(1.3, "completed"), truncated(3.0, 2600))
    assert turn.reason == "completed"
    assert turn.interrupted == Interruption(at_s=3.8, heard_ms=2600.0, heard="One two. Three")


def test_a_client_that_heard_all_of_it_interrupted_nothing():
    assert only_turn(*SPOKEN, done(1.3, "completed"), truncated(4.5, 3000)).interrupted is None


def test_what_the_client_says_it_heard_counts_more_than_the_clock():
    for order in ((done(2.7, "cancelled"), truncated(2.8, 200)), (truncated(2.6, 200), done(2.7, "cancelled"))):
        assert only_turn(*SPOKEN, *order).interrupted == Interruption(at_s=1.4, heard_ms=200.0, heard="")


def test_in_full_duplex_an_answer_is_cut_where_the_model_listens_again():
    def told(at_s, kind, **fields):
        return at_s, "out", {"type": "response.output.delta", "kind": kind, "response_id": "resp_1", **fields}

    turn = only_turn(
        (0.0, "out", {"type": "session.created", "session_id": "sess_1"}),
        told(1.0, "text", text=ONE_TWO),
        told(1.0, "audio", audio=media("out", 0, 1000)),
        told(1.5, "text", text=THREE_FOUR),
        told(1.5, "audio", audio=media("out", 1000, 2000)),
        told(2.1, "listen", text="", end_of_turn=True, interrupted=True),
    )
    assert turn.interrupted == Interruption(at_s=2.1, heard_ms=1100.0, heard="One two.")


def test_of_a_written_answer_all_that_came_was_read():
    text = (1.1, "out", {"type": "response.output_text.delta", "response_id": "resp_1", "delta": "One tw"})
    turn = only_turn(CREATED, BEGUN, text, done(1.5, "cancelled"))
    assert turn.interrupted == Interruption(at_s=1.5, heard_ms=None, heard="One tw")
    assert render_text(turn) == "One tw [interrupted at 1.50 s]"


@pytest.mark.parametrize("end", [done(1.3, "completed"), done(2.7, "cancelled"), truncated(1.4, 2600)])
def test_an_answer_begins_and_ends_when_its_first_and_last_words_are_heard(end):
    (timed,) = read_timed_turns(lines(*SPOKEN, end))
    assert [timed.turn.at_s, timed.turn.until_s] == [timed.marks[0][1], timed.marks[-1][1]]
    assert timed.turn.at_s == 1.2
    assert timed.turn.interrupted is None or timed.turn.interrupted.at_s == timed.turn.until_s


def test_an_answer_without_sound_begins_with_its_first_text():
    delta = {"type": "response.output_text.delta", "response_id": "resp_1", "item_id": "item_1", "delta": "Hi."}
    (timed,) = read_timed_turns(lines(CREATED, BEGUN, (1.4, "out", delta), done(1.9, "completed")))
    assert (timed.turn.at_s, timed.turn.until_s, timed.marks) == (1.4, 1.9, [(0, 1.4)])


def test_an_answer_with_nothing_in_it_begins_where_the_server_began_it():
    turn = only_turn(CREATED, BEGUN, done(1.9, "completed"))
    assert (turn.at_s, turn.until_s) == (1.0, 1.9)


def test_it_is_in_the_json():
    turns = msgspec.to_builtins(read_turns(lines(*SPOKEN, done(2.7, "cancelled"))))
    assert turns[0]["interrupted"] == {"at_s": 2.7, "heard_ms": 1500.0, "heard": "One two."}


def test_each_word_has_its_time():
    (timed,) = read_timed_turns(lines(*SPOKEN, done(1.3, "completed")))
    assert timed.marks == [(0, 1.2), (9, 2.2), (20, 4.2)]
    (timed,) = read_timed_turns(lines(*SPOKEN, done(2.7, "cancelled")))
    assert timed.marks == [(0, 1.2), (8, 2.7)]


def test_words_that_come_after_their_sound_are_said_during_it():
    (timed,) = read_timed_turns(lines(CREATED, BEGUN, sound(1.2, 0, 2000), words(1.3, ONE_TWO), words(1.4, THREE_FOUR)))
    assert timed.marks == [(0, 1.2), (20, 3.2)]


def said(at_s, kind, **fields):
    return at_s, "out", {"type": f"input_audio_buffer.{kind}", "item_id": "item_0", **fields}


def heard(at_s, from_ms, to_ms):
    return at_s, "in", {"type": "input_audio_buffer.append", "audio": media("in", from_ms, to_ms)}


def test_a_person_began_to_speak_before_it_was_noticed():
    appends = [heard(at_ms / 1000, at_ms - 100, at_ms) for at_ms in range(100, 3100, 100)]
    events = (
        CREATED,
        *appends,
        said(1.4, "speech_started", audio_start_ms=1000),
        said(2.6, "speech_stopped", audio_end_ms=2000),
        said(2.6, "committed"),
    )
    (timed,) = read_timed_turns(lines(*sorted(events, key=lambda event: event[0])))
    assert (timed.turn.at_s, timed.turn.text) == (1.0, "(said something)")
    assert timed.marks == [(0, 1.0), (16, 2.0)]


def test_what_was_committed_by_hand_is_all_since_the_last_commit():
    (first, second) = read_timed_turns(
        lines(
            CREATED,
            heard(1.0, 0, 1000),
            (1.0, "in", {"type": "input_audio_buffer.commit"}),
            said(1.0, "committed"),
            heard(5.0, 1000, 2000),
            (5.0, "out", {"type": "input_audio_buffer.committed", "item_id": "item_2"}),
        )
    )
    assert [first.marks, second.marks] == [[(0, 0.0), (16, 1.0)], [(0, 4.0), (16, 5.0)]]


@pytest.mark.parametrize(
    ("text", "position", "start"),
    [("One two", 3, 3), ("One two", 4, 4), ("One two", 6, 4), ("One", 2, 0), ("One", 3, 3), ("你好吗", 2, 2), ("ok 你好", 4, 4)],
)
def test_no_word_is_cut_in_two(text, position, start):
    assert word_start(text, position) == start
