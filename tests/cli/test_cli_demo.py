"""`antiphon demo`, played by a scripted model."""


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
    ):
        assert said in result.out


def test_the_demo_fails_with_the_model(antiphon, home):
    (home / "antiphon.toml").write_text("[[models]]\nname = 'parrot'\nengine = 'scripted'\n[[models.answers]]\nlines = [{ broke = {} }]\n")
    result = antiphon("demo")
    assert result.code == 1
    assert "The script says so." in result.err
