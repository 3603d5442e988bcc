"""`antiphon demo`, played by a scripted model."""

import re
import wave
from pathlib import Path
from xml.etree import ElementTree

import pytest

from antiphon.cli.commands.demo import _STEPS

PICTURE = Path(__file__).parents[3] / "docs" / "demo.svg"


def lines_of(picture: Path) -> list[str]:
    """The text of a picture, line by line."""
    return ["".join(text.itertext()) for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_the_demo_plays_every_act_and_ends_well(parrot):
    result = parrot("demo")
    assert (result.code, result.err) == (0, "")
    for said in (
        "parrot answers at http://127.0.0.1:",
        "1  An answer",
        "You said: What is the capital of France?",
        "tokens a second",
        'calls get_weather({"city":"Lisbon"})',
        '{"city": "Rome", "country": "Italy", "capital": true}',
        "5  A conversation that the server remembers",
        "6  A question by voice",
        "model  You said: speech of ",
        "speech end -> transcript ",
        "its audio is in antiphon-answer.wav: ",
        "7  The same in full duplex",
        "speech end -> first text ",
        "     Ada  is served",
        "     Ben  waits: number 1 of ",
        "    Cleo  waits: number 2 of 2",
        "    Cleo  is done",
        "9  Code that the server runs, on a file of yours",
    ):
        assert said in result.out


def test_the_demo_keeps_what_was_answered_aloud(parrot, home):
    parrot("demo")
    with wave.open(str(home / "antiphon-answer.wav")) as file:
        assert (file.getframerate(), file.getnframes() > 0) == (24_000, True)


def test_the_demo_guesses_no_long_wait_for_a_short_answer(parrot):
    result = parrot("demo", "--only", "8")
    guesses_s = [int(guess) for guess in re.findall(r"about (\d+) s", result.out)]
    assert guesses_s and max(guesses_s) <= 60


def test_the_picture_of_the_readme_asks_a_question_by_voice():
    lines = lines_of(PICTURE)
    part = lines[lines.index("6  A question by voice") :]
    assert any("you  What is" in line and line.endswith("?") for line in part)


def test_the_demo_goes_on_where_nothing_hears(parrot, home):
    settings = (home / "antiphon.toml").read_text()
    deaf = settings.replace('engine = "scripted"', 'engine = "scripted"\nabilities = { audio_in = false, listens = false }')
    (home / "antiphon.toml").write_text(f"{deaf}\n[speech]\nenabled = false\n")
    result = parrot("demo")
    assert (result.code, result.out.count("No conversation aloud here: `speech.enabled` is off.")) == (0, 2)
    assert "All of it works." in result.out


def test_the_demo_fails_with_the_model(antiphon, home):
    (home / "antiphon.toml").write_text(
        "[[models]]\nname = 'parrot'\nengine = 'scripted'\n[[models.answers]]\nlines = [{ failure = {} }]\n"
    )
    result = antiphon("demo")
    assert result.code == 1
    assert "The script says so." in result.err


def test_the_demo_shows_only_the_parts_that_are_asked_for(parrot):
    result = parrot("demo", "--only", "1", "--only", "4")
    assert (result.code, re.findall(r"^\d+  .*", result.out, re.MULTILINE)) == (
        0,
        ["1  An answer", "4  An answer in the shape of a JSON Schema"],
    )


def test_there_is_no_tenth_part(parrot):
    assert parrot("demo", "--only", "10").code == 2


def test_the_demo_is_drawn_as_text_that_can_be_read_and_copied(parrot, home):
    result = parrot("demo", "--only", "1", "--svg", "demo.svg")
    assert (result.code, result.err) == (0, "antiphon: the picture is in demo.svg\n")
    assert lines_of(home / "demo.svg") == ["antiphon demo", *filter(None, result.out.splitlines())]


def test_a_picture_that_cannot_be_written_is_told_before_the_demo(parrot):
    result = parrot("demo", "--svg", "nowhere/demo.svg")
    assert (result.code, result.out) == (2, "")
    assert "nowhere/demo.svg can't be written" in result.err


def test_the_picture_of_the_readme_shows_the_demo_as_it_is():
    titles = [line.split("  ", 1)[1] for line in lines_of(PICTURE) if re.match(r"\d+  ", line)]
    assert titles
    assert set(titles) <= set(_STEPS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_needs_no_other_file_and_has_colours_for_a_page(scheme):
    picture = PICTURE.read_text()
    assert not re.search(r"url\(|href|@font-face|@import", picture)
    light, dark = picture.split("@media (prefers-color-scheme: dark)")
    assert {"text", "rect", ".user", ".model"} <= set(re.findall(r"^(\S+?),? .*{ ", light if scheme == "light" else dark, re.MULTILINE))
