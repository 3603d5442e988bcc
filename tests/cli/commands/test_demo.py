"""`antiphon demo`, played by a scripted model."""

import wave


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
    ):
        assert said in result.out


def test_the_demo_keeps_what_was_answered_aloud(parrot, home):
    parrot("demo")
    with wave.open(str(home / "antiphon-answer.wav")) as file:
        assert (file.getframerate(), file.getnframes() > 0) == (24_000, True)


def test_the_demo_goes_on_where_nothing_hears(parrot, home):
    settings = (home / "antiphon.toml").read_text()
    deaf = settings.replace('engine = "scripted"', 'engine = "scripted"\nabilities = { audio_in = false, listens = false }')
    (home / "antiphon.toml").write_text(f"{deaf}\n[speech]\nenabled = false\n")
    result = parrot("demo")
    assert (result.code, result.out.count("No conversation aloud here: `speech.enabled` is off.")) == (0, 2)
    assert "All of it works." in result.out


def test_the_demo_fails_with_the_model(antiphon, home):
    (home / "antiphon.toml").write_text("[[models]]\nname = 'parrot'\nengine = 'scripted'\n[[models.answers]]\nlines = [{ broke = {} }]\n")
    result = antiphon("demo")
    assert result.code == 1
    assert "The script says so." in result.err
