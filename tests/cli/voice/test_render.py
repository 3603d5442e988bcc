"""How a conversation is shown."""

import io
from pathlib import Path

from antiphon.cli.common.shell import Shell
from antiphon.cli.voice.render import TerminalRenderer, format_latencies
from antiphon.cli.voice.transcript import MODEL, USER, TalkTurn, TextChunk


def staged(*words, columns=40, then=lambda renderer: renderer.end()):
    """What is printed."""
    out = io.StringIO()
    shell = Shell(environ={"COLUMNS": str(columns)}, cwd=Path(), stdin=io.StringIO(), stdout=out, stderr=io.StringIO())
    renderer = TerminalRenderer(shell)
    for each in words:
        renderer.show(each)
    then(renderer)
    return out.getvalue()


def test_everyone_has_lines_of_their_own():
    assert staged(
        TextChunk(USER, "Hello.", is_last=True), TextChunk(MODEL, "Hi", is_last=False), TextChunk(MODEL, " there.", is_last=True)
    ) == ("     you  Hello.\n   model  Hi there.\n")


def test_words_go_on_the_next_line_where_they_do_not_fit():
    assert staged(TextChunk(MODEL, "one two three four five six seven eight")) == (
        "   model  one two three four five six\n          seven eight\n"
    )


def test_a_list_keeps_its_lines_and_what_ends_with_one_ends_once():
    said = (
        TextChunk(MODEL, "Two:\n\n- a"),
        TextChunk(MODEL, "\n"),
        TextChunk(MODEL, "- b\n"),
        TextChunk(MODEL, "", is_last=True),
        TextChunk(MODEL, "Well."),
    )
    assert staged(*said) == "   model  Two:\n          - a\n          - b\n   model  Well.\n"


def test_a_word_in_pieces_is_one_word():
    assert staged(TextChunk(MODEL, "An"), TextChunk(MODEL, "ti"), TextChunk(MODEL, "phon sings")) == "   model  Antiphon sings\n"


def test_a_word_that_fits_nowhere_is_shown_all_the_same():
    assert staged(TextChunk(MODEL, "x" * 50 + " y")) == f"   model  {'x' * 50}\n          y\n"


def test_what_was_understood_late_waits_for_the_end_of_the_answer():
    assert staged(
        TextChunk(MODEL, "Hi."), TextChunk(USER, "Hel"), TextChunk(USER, "lo.", is_last=True), TextChunk(MODEL, "", is_last=True)
    ) == ("   model  Hi.\n     you  Hello.\n")


def test_a_remark_ends_what_is_being_said():
    late = TextChunk(USER, "Hel")
    assert (
        staged(TextChunk(MODEL, "Hi."), late, then=lambda renderer: renderer.remark("So."))
        == "   model  Hi.\n     you  Hel\n          So.\n"
    )


def test_nobody_speaking_is_nothing():
    assert staged(TextChunk(MODEL, "", is_last=True)) == ""


def test_recordings_and_waits_are_remarks():
    turn = TalkTurn(item_id="item_1", speech_end_s=1.0, transcript_s=1.0061, first_token_s=1.25)

    def tell(renderer):
        renderer.remark("a.wav")
        renderer.remark(format_latencies(turn.latencies_ms))

    told = ["a.wav", "speech end -> transcript 6, first token 250, first audio - ms"]
    assert staged(columns=100, then=tell).splitlines() == [f"          {line}" for line in told]


def test_waits_of_seconds_are_one_line_of_a_usual_terminal():
    slow = TalkTurn(item_id="item_1", speech_end_s=0.0, transcript_s=9.9, first_token_s=10.0, first_audio_s=99.9)
    told = "          speech end -> transcript 9900, first token 10000, first audio 99900 ms"
    assert staged(columns=80, then=lambda renderer: renderer.remark(format_latencies(slow.latencies_ms))).splitlines() == [told]
