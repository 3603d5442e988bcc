"""Two sessions with the same client input, compared by response times and words."""

import base64
from array import array

import pytest

from antiphon.audio import wav_file
from antiphon.runtime.recording.answers import find_answers, find_transcripts
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.mixing import PcmAudio
from antiphon.runtime.replay.compare import Spread, compare, count_word_errors, split_words, summarize
from antiphon.runtime.replay.questions import find_questions, find_speech
from support.runtime.recorded_sessions import recording

RATE_HZ = 16_000
PIECE_S = 0.5
PIECE_BYTES = int(2 * RATE_HZ * PIECE_S)


def tone(seconds, level=3000):
    return array("h", [level if at // 8 % 2 else -level for at in range(int(RATE_HZ * seconds))]).tobytes()


def line_of(*spans):
    """The sound of a microphone: by turns how long it is silent, and how long someone speaks."""
    return b"".join(tone(seconds, 3000 if at % 2 else 0) for at, seconds in enumerate(spans))


# Where someone speaks


def seconds(found):
    return [(begins / 2 / RATE_HZ, ends / 2 / RATE_HZ) for begins, ends in found]


def test_speech_is_what_is_loud_with_its_short_pauses():
    assert seconds(find_speech(PcmAudio(line_of(0.5, 1.0, 0.2, 0.4, 1.0, 0.6, 0.5), RATE_HZ))) == [(0.5, 2.1), (3.1, 3.7)]


@pytest.mark.parametrize("pcm", [b"", bytes(PIECE_BYTES), tone(1, 100), line_of(1, 0.04, 1)])
def test_silence_what_is_faint_and_a_click_are_none(pcm):
    assert find_speech(PcmAudio(pcm, RATE_HZ)) == []


def test_noise_on_the_line_is_none():
    noisy = [tone(1, 400), tone(1), tone(1, 400)]
    assert seconds(find_speech(PcmAudio(b"".join(noisy), RATE_HZ))) == [(1.0, 2.0)]


# When it ended


def append(nth):
    return {
        "type": "input.append",
        "input": {"audio": {"$media": "in.wav", "offset": nth * PIECE_BYTES, "bytes": PIECE_BYTES, "form": "pcm"}},
    }


def said(pcm, times=None):
    """The client's events with that sound, each sent when it is over."""
    count = len(pcm) // PIECE_BYTES
    times = times or [PIECE_S * (nth + 1) for nth in range(count)]
    return [(at_s, "in", append(nth)) for nth, at_s in enumerate(times)]


def lines(events):
    return [
        EventLine(seq, at_s, direction, event)
        for seq, (at_s, direction, event) in enumerate(sorted(events, key=lambda one: one[0]), start=1)
    ]


def duplex(events, pcm):
    return recording(
        lines(events), protocol="minicpmo", mode="audio", files={"in.wav": wav_file(pcm, RATE_HZ), "out.wav": wav_file(b"", 24_000)}
    )


PCM = line_of(0.5, 0.8, 1.2, 1.0, 1.5)  # speech that ends at 1.3 and 3.5 s


def test_what_ends_in_a_piece_ended_before_the_piece_was_sent():
    asks = find_questions(lines(said(PCM)), {"in.wav": wav_file(PCM, RATE_HZ)})
    at_pace = [PIECE_S * (nth + 1) for nth in range(10)]
    assert [round(ask.end_at_s(at_pace), 3) for ask in asks] == [1.3, 3.5]
    late = [at_s + 0.1 for at_s in at_pace]
    assert [round(ask.end_at_s(late), 3) for ask in asks] == [1.4, 3.6]
    assert [ask.end_at_s(at_pace[:3]) for ask in asks] == [pytest.approx(1.3), None]


def test_of_sound_that_is_sent_sooner_than_it_sounds_the_end_is_when_it_was_sent():
    asks = find_questions(lines(said(PCM)), {"in.wav": wav_file(PCM, RATE_HZ)})
    assert [ask.end_at_s([0.01 * nth for nth in range(10)]) for ask in asks] == [0.02, 0.06]


# What was answered


def output(at_s, response_id, kind="text", **fields):
    return (at_s, "out", {"type": "response.output.delta", "kind": kind, "response_id": response_id, **fields})


def floats(ms):
    return base64.b64encode(bytes(4 * 24 * ms)).decode()


def in_file(ms):
    return {"$media": "out.wav", "offset": 0, "bytes": 2 * 24 * ms, "form": "float32"}


def answered(at_s, response_id, text, sound, **end):
    """An answer in full duplex: its words, 100 ms later its sound, and its end."""
    return [
        output(at_s, response_id, text=text),
        output(at_s + 0.1, response_id, "audio", audio=sound),
        output(at_s + 0.4, response_id, "listen", text="", end_of_turn=True, **end),
    ]


def test_each_turn_is_timed_from_the_end_of_the_speech_in_either_session():
    then = duplex([*said(PCM), *answered(1.6, "a", "It is a fugue.", in_file(500)), *answered(4.1, "b", "Yes.", in_file(200))], PCM)
    late = [at_s + 0.25 for at_s, _, _ in said(PCM)]
    now = [
        *said(PCM, late),
        *answered(1.65, "x", "It is the flight.", floats(700)),
        *answered(4.0, "y", "Yes.", floats(200), interrupted=True),
    ]
    first, second = compare(then, lines(now))
    assert first.speech_s == (0.5, 1.3)
    assert (first.recorded.begins_ms, first.recorded.first_text_ms, first.recorded.first_audio_ms) == (300, 300, 400)
    assert (first.replayed.begins_ms, first.replayed.first_audio_ms) == (100, 200)
    assert first.change == {"begins_ms": -200, "first_text_ms": -200, "first_audio_ms": -200, "sound_ms": 200}
    assert (first.words, first.word_errors, first.same) == (4, 2, False)
    assert (second.recorded.begins_ms, second.replayed.begins_ms, second.same) == (600, 250, True)
    assert (second.recorded.interrupted, second.replayed.interrupted) == (False, True)
    told = summarize([first, second])
    assert told.waits["begins_ms"] == {"recorded": Spread(450, 600), "replayed": Spread(175, 250), "change": Spread(-275, -200)}
    assert (told.sound_ms, told.interrupted) == ({"recorded": 700, "replayed": 900}, {"recorded": 0, "replayed": 1})
    assert (told.words, told.word_errors, told.wer) == (5, 2, 0.4)


def test_an_answer_that_does_not_come_leaves_the_next_in_its_place():
    then = duplex([*said(PCM), *answered(1.6, "a", "One.", in_file(100)), *answered(4.0, "b", "Two.", in_file(100))], PCM)
    first, second = compare(then, lines([*said(PCM), *answered(4.0, "x", "Two.", floats(100))]))
    assert (first.recorded.text, first.replayed, first.word_errors) == ("One.", None, 1)
    assert second.same
    assert summarize([first, second]).unanswered == {"recorded": 0, "replayed": 1}


def test_what_is_said_before_the_person_has_finished_is_an_answer_ahead_of_time():
    then = duplex([*said(PCM), *answered(3.2, "a", "I know!", in_file(100))], PCM)
    (turn,) = compare(then, lines(said(PCM)))
    assert (turn.recorded.begins_ms, turn.replayed) == (-300, None)
    assert turn.speech_s == (0.5, 3.5)  # all that nobody answered before


def test_an_answer_to_nothing_has_no_time():
    then = duplex([*said(PCM), *answered(0.1, "a", "Hello!", in_file(100))], PCM)
    (turn,) = compare(then, lines([*said(PCM), *answered(0.2, "x", "Hello!", floats(100))]))
    assert turn.same and turn.recorded.begins_ms is None and turn.speech_s is None


# Turns by request


def spoken(at_s, response_id, text):
    return [
        (at_s, "out", {"type": "response.created", "response": {"id": response_id}}),
        (at_s + 0.1, "out", {"type": "response.output_text.delta", "response_id": response_id, "delta": text}),
        (at_s + 0.2, "out", {"type": "response.done", "response": {"id": response_id, "status": "cancelled"}}),
    ]


def question(at_s, text):
    item = {"role": "user", "content": [{"type": "input_text", "text": text}]}
    return [(at_s, "in", {"type": "conversation.item.create", "item": item}), (at_s + 0.05, "in", {"type": "response.create"})]


def test_a_question_in_writing_is_over_when_an_answer_is_asked_for():
    then = recording(lines([*question(1, "Why?"), *spoken(1.25, "a", "So."), *question(2, "How?"), *spoken(2.3, "b", "Thus.")]), files={})
    now = lines([*question(1, "Why?"), *spoken(1.15, "x", "So."), *question(2, "How?"), *spoken(2.4, "y", "Thus.")])
    first, second = compare(then, now)
    assert (first.asked, first.recorded.begins_ms, first.recorded.first_text_ms, first.replayed.begins_ms) == ("Why?", 200, 300, 100)
    assert (second.asked, second.recorded.interrupted, second.recorded.reason) == ("How?", True, "cancelled")


@pytest.mark.parametrize(("kind", "size_bytes"), [("audio/pcm", 4800), ("audio/pcmu", 800)])
def test_sound_is_as_long_as_its_form_makes_it(kind, size_bytes):
    sound = base64.b64encode(bytes(size_bytes)).decode()
    events = [
        (0, "out", {"type": "session.updated", "session": {"audio": {"output": {"format": {"type": kind}}}}}),
        (1, "out", {"type": "response.output_audio.delta", "response_id": "a", "delta": sound}),
    ]
    (answer,) = find_answers(lines(events), "realtime", {})
    assert answer.audio_ms == 100


def test_an_answer_in_chat_may_come_whole():
    done = {"type": "response.done", "response_id": "a", "text": "So.", "audio": floats(50), "reason": "turn_end"}
    (answer,) = find_answers(lines([(1, "out", done)]), "minicpmo", {})
    assert (answer.text, answer.audio_ms, answer.reason, answer.first_audio_s) == ("So.", 50, "turn_end", 1)


def test_in_a_transcription_what_was_understood_is_compared():
    heard = "conversation.item.input_audio_transcription"
    events = [
        (1, "out", {"type": f"{heard}.delta", "item_id": "a", "delta": "What "}),
        (2, "out", {"type": f"{heard}.delta", "item_id": "a", "delta": "now?"}),
        (3, "out", {"type": f"{heard}.completed", "item_id": "a", "transcript": "What now?"}),
        (4, "out", {"type": f"{heard}.completed", "item_id": "b", "transcript": "So."}),
    ]
    assert [(one.text, one.first_text_s, one.reason) for one in find_transcripts(lines(events))] == [
        ("What now?", 1, "completed"),
        ("So.", 4, "completed"),
    ]
    session = recording(lines(events), mode="transcription", files={})
    assert [turn.same for turn in compare(session, session.lines)] == [True]


# Words


def test_words_are_told_apart_by_what_stands_between_them_or_are_one_character_each():
    assert split_words("Don’t stop: 2 of them!") == ["don't", "stop", "2", "of", "them"]
    assert split_words("你好 MiniCPM，今天") == ["你", "好", "minicpm", "今", "天"]


@pytest.mark.parametrize(
    ("then", "now", "errors"), [("a b c", "a b c", 0), ("a b c", "a x c", 1), ("a b c", "", 3), ("", "a", 1), ("a b c d", "b c d e", 2)]
)
def test_errors_are_words_left_out_put_in_or_replaced(then, now, errors):
    assert count_word_errors(then.split(), now.split()) == errors


def test_without_words_then_there_is_no_rate():
    assert summarize([]).wer is None
