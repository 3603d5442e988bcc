"""Subtitles of a transcript."""

from antiphon.wire.http.audio import to_srt, to_vtt

SEGMENTS = [("one\n\n \ntwo < 3", 0.0, 1.5), ("", 1.5, 3661.25)]


def test_a_blank_line_in_a_text_does_not_end_its_cue():
    assert to_srt(SEGMENTS) == "1\n00:00:00,000 --> 00:00:01,500\none\ntwo < 3\n\n2\n00:00:01,500 --> 01:01:01,250\n\n\n"
    assert to_vtt(SEGMENTS) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\none\ntwo &lt; 3\n\n00:00:01.500 --> 01:01:01.250\n\n\n"
