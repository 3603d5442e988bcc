"""Subtitles, as FFmpeg's own readers understand them, and by the grammar of WebVTT."""

import io
import re
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from antiphon.runtime.export.subtitles import (
    CUE_LINES,
    LINE_COLUMNS,
    MAX_CUE_S,
    Cue,
    make_captions,
    make_cues,
    write_srt,
    write_webvtt,
)
from antiphon.runtime.recording.transcript import Interruption, TimedTurn, TranscriptTurn

TIMESTAMP = r"(?:\d{2,}:)?[0-5]\d:[0-5]\d\.\d{3}"
TIMINGS = re.compile(rf"({TIMESTAMP})[ \t]+-->[ \t]+({TIMESTAMP})")
PAYLOAD = re.compile(r"<v (?P<voice>[^>&\n]+)>(?P<text>(?:[^&<>]|&(?:amp|lt|gt|nbsp|lrm|rlm);)*)")


def seconds(timestamp):
    *hours, minutes, rest = timestamp.split(":")
    return int(hours[0] if hours else 0) * 3600 + int(minutes) * 60 + float(rest)


def parsed(content):
    """The cues of a WebVTT file; fails where it isn't one. Source: W3C WebVTT, section 4 ("Syntax")."""
    assert "\x00" not in content and "\r" not in content and content.endswith("\n")
    header, *blocks = content.removesuffix("\n").split("\n\n")
    assert header == "WEBVTT"
    cues = []
    for block in blocks:
        timings, *payload = block.split("\n")
        match = TIMINGS.fullmatch(timings)
        assert match is not None and payload and all(payload), block
        start_s, end_s = map(seconds, match.groups())
        assert start_s < end_s and (not cues or cues[-1][0] <= start_s)  # "greater than or equal to the start times of all previous cues"
        text = "\n".join(payload)
        assert "-->" not in text
        spoken = PAYLOAD.fullmatch(text)
        assert spoken is not None, text
        plain = spoken["text"].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        cues.append((start_s, end_s, spoken["voice"], plain))
    return cues


def person(text, *marks):
    return TimedTurn(TranscriptTurn("person", text, marks[0]), [(0, marks[0]), *((len(text), end_s) for end_s in marks[1:])])


def model(text, start_s, end_s, **fields):
    turn = TranscriptTurn("model", text, start_s, **fields)
    return TimedTurn(turn, [(0, start_s), (len(turn.heard_text), end_s)])


def test_both_sides_have_their_names_and_times():
    cues = make_cues([person("What is a fugue?", 1.0, 2.0), model("A flight.", 2.5, 4.0)])
    assert parsed(write_webvtt(cues)) == [(1.0, 2.0, "Person", "What is a fugue?"), (2.5, 4.0, "Model", "A flight.")]
    assert write_srt(make_captions(cues)) == (
        "1\n00:00:01,000 --> 00:00:02,000\nPerson: What is a fugue?\n\n2\n00:00:02,500 --> 00:00:04,000\nModel: A flight.\n"
    )


def test_a_file_without_words_is_a_file():
    assert parsed(write_webvtt([])) == [] and write_srt([]) == ""


def test_an_interrupted_answer_shows_only_what_was_heard():
    stop = Interruption(3.0, 500.0, "A flight")
    (cue,) = make_cues([model("A flight of voices.", 2.5, 3.0, interrupted=stop)])
    assert cue.lines == ("A flight—",)


def test_a_long_answer_is_read_in_pieces_while_it_is_said():
    text = "The number of clubs is ten, as you can see, and there are twelve hearts. It's really a lot! Shall I go on them for you?"
    cues = make_cues([model(text, 10.0, 20.0)])
    assert " ".join(line for cue in cues for line in cue.lines) == text
    assert [cue.lines[-1][-1] for cue in cues][-2:] == ["!", "?"]
    for cue in cues:
        at = text.index(cue.lines[0])
        assert cue.start_s == pytest.approx(10 + 10 * at / len(text)) and cue.end_s <= 20.0


def test_a_slow_answer_does_not_stand_still():
    cues = make_cues([model("one two three four five six", 0.0, 27.0)])
    assert len(cues) >= 4 and all(cue.end_s - cue.start_s <= MAX_CUE_S for cue in cues)


def test_what_was_written_stays_for_as_long_as_it_takes_to_read():
    (cue,) = make_cues([person("Is there a word for that?", 1.0)])
    assert (cue.start_s, cue.end_s) == (1.0, pytest.approx(1.0 + 25 / 17))


def test_a_script_without_spaces_is_broken_too():
    text = "你好，我想问一下今天的天气怎么样，明天会不会下雨，后天我们要去爬山，所以很想知道。谢谢你的回答，再见！"
    cues = make_cues([model(text, 0.0, 12.0)])
    assert "".join(line for cue in cues for line in cue.lines) == text
    assert all(2 * len(line) <= LINE_COLUMNS for cue in cues for line in cue.lines)
    assert not any(line[0] in "，。！" for cue in cues for line in cue.lines)


def test_text_that_looks_like_markup_is_text():
    text = "<b>&amp; {\\an8} 1 --> 2\n\nNOTE"
    cues = make_cues([model(text, 0.0, 4.0)])
    assert " ".join(part for _, _, _, each in parsed(write_webvtt(cues)) for part in each.split()) == " ".join(text.split())
    srt = write_srt(make_captions(cues))
    assert srt.count("-->") == 1 + len(cues) or srt.count("\n\n") == len(cues) - 1
    assert "<" not in srt and "{\\" not in srt


def test_both_sides_at_once_are_one_caption():
    cues = make_cues([model("A long answer here.", 1.0, 4.0), person("Stop it now.", 3.0, 5.0)])
    assert [(one.start_s, one.end_s, one.text) for one in make_captions(cues)] == [
        (1.0, 3.0, "Model: A long answer here."),
        (3.0, 4.0, "Model: A long answer here.\nPerson: Stop it now."),
        (4.0, 5.0, "Person: Stop it now."),
    ]


def test_players_read_the_same_from_both_files():
    av = pytest.importorskip("av")
    cues = make_cues(
        [person("What is a fugue?", 1.0, 2.0), model("A flight of voices, one after the other.", 2.5, 4.0), person("Yes.", 3661.25, 3663.0)]
    )
    for content, kind in ((write_webvtt(cues), "webvtt"), (write_srt(make_captions(cues)), "srt")):
        with av.open(io.BytesIO(content.encode()), format=kind) as file:
            packets = [packet for packet in file.demux(file.streams.subtitles[0]) if packet.size]
            times = [(float(one.pts * one.time_base), float((one.pts + one.duration) * one.time_base)) for one in packets]
            assert times == [pytest.approx((cue.start_s, cue.end_s), abs=0.001) for cue in cues]
            assert all(cue.lines[0] in bytes(one).decode() for one, cue in zip(packets, cues, strict=True))


turns = st.lists(
    st.tuples(st.sampled_from(["person", "model"]), st.text(max_size=120), st.floats(0, 1000), st.floats(0, 60), st.booleans()), max_size=6
)


@given(turns)
def test_whatever_is_said_the_files_are_well_formed(said):
    timed = []
    for role, text, start_s, lasts_s, is_written in said:
        turn = TranscriptTurn(role, text, start_s)
        timed.append(TimedTurn(turn, [(0, start_s)] if is_written else [(0, start_s), (len(text), start_s + lasts_s)]))
    cues = make_cues(timed)
    parsed(write_webvtt(cues))
    for cue in cues:
        assert isinstance(cue, Cue) and 1 <= len(cue.lines) <= CUE_LINES and all(cue.lines)
    captions = make_captions(cues)
    assert all(one.end_s <= other.start_s for one, other in pairwise(captions))
    srt = write_srt(captions)
    assert len(re.findall(r"^\d+\n\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}$", srt, re.M)) == len(captions)
    assert not srt or srt.count("\n\n") == len(captions) - 1
