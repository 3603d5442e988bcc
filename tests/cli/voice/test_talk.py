"""`antiphon talk` with a scripted model."""

import wave

import pytest

from support.cli.tones import question, tone, write_wav

HEARS = """
[[models]]
name = "parrot"
engine = "scripted"
hears = [
  { turn = 1, says = "What is a fugue?" },
  { turn = 2, says = "And a canon?" },
  { says = "Thank you." },
]

[[models.answers]]
when = "canon"
lines = [{ text = "Ask Bach. " }, { finish_reason = "length" }]

[[models.answers]]
when = "Thank"
lines = [{ failure = { message = "It broke." } }]

[[models.answers]]
say = "You said: {input}"
"""


@pytest.fixture
def parrot(home, antiphon, free_port):
    """The program where a scripted model that hears is configured, and no server runs."""
    (home / "antiphon.toml").write_text(f"[server]\nport = {free_port}\n{HEARS}")
    for name in ("one.wav", "two.wav", "three.wav"):
        question(home / name)
    return antiphon


def test_a_recording_is_heard_and_answered(parrot):
    result = parrot("talk", "one.wav", "--fast")
    assert result.code == 0
    you, model, waits = result.out.splitlines()
    assert (you, model) == ("     you  What is a fugue?", "   model  You said: What is a fugue?")
    assert waits.startswith("          speech end -> transcript ")
    assert "so one starts for this command only" in result.err


def test_at_the_pace_of_speech_it_is_the_same(parrot):
    assert "   model  You said: What is a fugue?\n" in parrot("talk", "one.wav").out


def test_the_answer_goes_to_a_wav_file(parrot, home):
    result = parrot("talk", "one.wav", "--fast", "-o", "answer.wav")
    assert "the answer is in answer.wav: " in result.err
    with wave.open(str(home / "answer.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert file.getnframes() > 24_000


@pytest.mark.parametrize("dialect", ["ga", "beta"])
def test_json_has_the_turns_their_times_and_the_events(parrot, home, dialect):
    told = parrot("talk", "one.wav", "--fast", "--json", "--dialect", dialect, "-o", "answer.wav").json
    turn = told["turns"][0]
    assert (told["model"], told["dialect"], turn["source"], turn["status"]) == ("parrot", dialect, "one.wav", "completed")
    assert (turn["transcript"], turn["answer"]) == ("What is a fugue?", "You said: What is a fugue?")
    assert 0 <= turn["after_speech_ms"]["first_token"] <= turn["after_speech_ms"]["answered"]
    assert told["events"]["sent"]["input_audio_buffer.append"] >= 20 + 25
    assert told["events"]["received"]["response.done"] == 1
    assert told["output"] == str(home / "answer.wav")


def test_several_recordings_are_turns_of_one_conversation(parrot):
    result = parrot("talk", "one.wav", "two.wav", "--fast")
    assert (result.code, [line.strip() for line in result.out.splitlines() if ".wav" in line]) == (0, ["one.wav", "two.wav"])
    assert "     you  And a canon?\n   model  Ask Bach. (cut off)\n" in result.out
    assert "the answer was cut off: max_output_tokens" in result.err


def test_an_answer_that_fails_is_a_failure_with_its_reason(parrot):
    result = parrot("talk", "one.wav", "two.wav", "three.wav", "--fast")
    assert result.code == 1
    assert "The model failed: It broke." in result.err


def test_a_file_elsewhere_is_named_as_it_was_typed(parrot, home):
    (home / "inside").mkdir()
    assert "the answer is in inside/../answer.wav: " in parrot("talk", "one.wav", "--fast", "-o", "inside/../answer.wav").err
    assert (home / "answer.wav").exists()
    assert "inside is a folder; -o takes" in parrot("talk", "one.wav", "-o", "inside").err


def test_the_sample_asks_without_a_recording(parrot):
    result = parrot("talk", "--sample", "--fast")
    assert result.code == 0
    assert result.out.startswith("     you  What is a fugue?\n")  # to a scripted model, all speech is the same


def test_a_pause_in_a_recording_is_the_end_of_a_turn(parrot, home):
    write_wav(home / "pause.wav", tone(400).tobytes() + bytes(48_000) + tone(400).tobytes())
    turns = parrot("talk", "pause.wav", "--fast", "--json").json["turns"]
    assert [turn["transcript"] for turn in turns] == ["What is a fugue?", "And a canon?"]


def test_an_answer_without_a_voice_has_no_file(parrot, home):
    (home / "antiphon.toml").write_text((home / "antiphon.toml").read_text().replace("hears", "abilities = { audio_out = false }\nhears"))
    result = parrot("talk", "one.wav", "--fast", "-o", "answer.wav")
    assert (result.code, ", first audio - ms" in result.out) == (0, True)
    assert "the answer has no audio, so answer.wav is not written" in result.err
    assert not (home / "answer.wav").exists()


def test_what_the_server_refuses_is_told_in_its_words(parrot):
    for arguments, reason in (
        (("--model", "gpt-9"), "`gpt-9` does not exist"),
        (("--url", "http://127.0.0.1:1"), "No answer from http://127.0.0.1:1"),
    ):
        result = parrot("talk", "one.wav", *arguments)
        assert result.code == 1
        assert reason in result.err


def test_a_model_that_hears_nothing_is_told_with_what_to_do(parrot, home, free_port):
    (home / "antiphon.toml").write_text(
        f"[server]\nport = {free_port}\n[speech]\nenabled = false\n"
        "[[models]]\nname = 'deaf'\nengine = 'scripted'\nabilities = { audio_in = false, listens = false }\n"
    )
    result = parrot("talk", "one.wav", "--fast")
    assert (result.code, result.err.splitlines()[-1].startswith("antiphon: The model takes no audio")) == (1, True)
    assert "antiphon models pull --speech" in result.err


def test_mistakes_are_told_before_anything_starts(parrot, home):
    for arguments, reason in (
        (("none.wav",), "can't be read: No such file"),
        (("antiphon.toml",), "antiphon.toml"),
        (("one.wav", "-o", "nowhere/answer.wav"), "There is no folder"),
        (("one.wav", "-o", "."), "is a folder; -o takes the name of a WAV file"),
        (("--fast",), "name at least one"),
        (("one.wav", "--dialect", "gamma"), "gamma"),
    ):
        result = parrot("talk", *arguments)
        assert (result.code, result.out) == (2, "")
        assert reason in result.err
        assert "engine starts" not in result.err
