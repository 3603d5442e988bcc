"""`antiphon duplex` with a scripted model."""

import base64
import wave

import pytest

from support.cli.tones import question, tone, write_wav

JPEG = base64.b64decode(
    "/9j//gAQTGF2YzYyLjI4LjEwMgD/2wBDAAgEBAQEBAUFBQUFBQYGBgYGBgYGBgYGBgYHBwcICAgHBwcGBgcHCAgICAkJCQgICAgJCQoKCgwMCwsODg4RERT/xABLAAEA"
    "AAAAAAAAAAAAAAAAAAAAAQEAAAAAAAAAAAAAAAAAAAABEAEAAAAAAAAAAAAAAAAAAAAAEQEBAAAAAAAAAAAAAAAAAAAAIf/AABEIABAAEAMBIgACEQADEQD/2gAMAwEAAhEDEQA/AAAor//Z"
)
"""A grey picture."""

MODELS = """
[[models]]
name = "parrot"
engine = "scripted"
hears = [{ turn = 1, says = "What is a fugue?" }, { turn = 2, says = "And a canon?" }]

[[models.answers]]
when = "canon"
lines = [{ text = "Ask Bach." }]

[[models.answers]]
say = "You said: {input}"

[[models]]
name = "mute"
engine = "scripted"
abilities = { audio_out = false }

[[models]]
name = "deaf"
engine = "scripted"
abilities = { audio_in = false, listens = false, full_duplex = false }

[[models]]
name = "mortal"
engine = "scripted"
duplex = { lost = { at = 2, message = "Its power went out." } }

[[models]]
name = "broken"
engine = "scripted"
answers = [{ lines = [{ failure = { message = "It broke." } }] }]
"""


@pytest.fixture
def parrot(home, antiphon, free_port):
    """The program where scripted models in full duplex are configured, and no server runs."""
    (home / "antiphon.toml").write_text(f"[server]\nport = {free_port}\n[speech]\nenabled = false\n{MODELS}")
    for name in ("one.wav", "two.wav"):
        question(home / name)
    return antiphon


def test_a_recording_is_heard_and_answered(parrot):
    result = parrot("duplex", "one.wav", "--fast", "--chunk-ms", "100")
    assert result.code == 0
    session, *listens, model, waits = [line.strip() for line in result.out.splitlines()]
    assert session.startswith("session sess_")
    assert listens in ([], ["it listens"])
    assert model == "model  You said: What is a fugue?"
    assert waits.startswith("speech end -> first text ") and waits.endswith(" ms")
    assert "so one starts for this command only" in result.err


def test_at_the_pace_of_speech_it_is_the_same(parrot):
    assert "   model  You said: What is a fugue?\n" in parrot("duplex", "one.wav", "--chunk-ms", "200").out


def test_the_sample_asks_without_a_recording(parrot):
    assert "   model  You said: What is a fugue?\n" in parrot("duplex", "--sample", "--fast", "--chunk-ms", "200").out


def test_the_sample_stands_alone(parrot):
    for command in ("talk", "duplex"):
        result = parrot(command, "one.wav", "--sample")
        assert (result.code, result.err) == (2, "antiphon: --sample takes the place of recordings: name none beside it.\n")


def test_the_answer_goes_to_a_wav_file(parrot, home):
    result = parrot("duplex", "one.wav", "--fast", "-o", "answer.wav")
    assert "the answer is in answer.wav: " in result.err
    with wave.open(str(home / "answer.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert file.getnframes() > 24_000


def test_json_has_the_answers_their_times_and_the_events(parrot, home):
    told = parrot("duplex", "one.wav", "--fast", "--json", "--chunk-ms", "200", "-o", "answer.wav", "--model", "parrot").json
    answer = told["answers"][0]
    assert (told["model"], told["mode"], told["runtime_mode"], told["queue"]) == ("parrot", "audio", "full_duplex", [])
    assert (answer["source"], answer["text"], answer["interrupted"]) == ("one.wav", "You said: What is a fugue?", False)
    assert answer["after_speech_ms"]["first_text"] <= answer["after_speech_ms"]["ended"]
    assert answer["answer_ms"] > 1000
    assert told["usage"]["output_tokens"] > 0
    assert (told["events"]["sent"]["session.init"], told["events"]["received"]["session.closed"]) == (1, 1)
    assert told["output"] == str(home / "answer.wav")


def test_several_recordings_are_one_session(parrot):
    answers = parrot("duplex", "one.wav", "two.wav", "--fast", "--json", "--chunk-ms", "200").json["answers"]
    assert [(answer["source"], answer["text"]) for answer in answers] == [
        ("one.wav", "You said: What is a fugue?"),
        ("two.wav", "Ask Bach."),
    ]


def test_what_must_be_listened_to_is_not_talked_over(parrot, home):
    write_wav(home / "pause.wav", tone(400).tobytes() + bytes(48_000 * 2) + tone(400).tobytes())
    over = parrot("duplex", "pause.wav", "--fast", "--json", "--chunk-ms", "100").json["answers"]
    after = parrot("duplex", "pause.wav", "--fast", "--json", "--chunk-ms", "100", "--force-listen").json["answers"]
    assert [answer["text"] for answer in over] == ["You said: What is a fugue?", "Ask Bach."]
    assert [answer["text"] for answer in after] == ["Ask Bach."]


@pytest.mark.parametrize("given", ["frames", "frames/*.jpg", "frames/1.jpg"])
def test_pictures_go_with_the_sound(parrot, home, given):
    (home / "frames").mkdir()
    for number in (1, 2):
        (home / "frames" / f"{number}.jpg").write_bytes(JPEG)
    told = parrot("duplex", "one.wav", "--video", given, "--fast", "--json", "--chunk-ms", "200").json
    assert (told["mode"], told["answers"][0]["text"]) == ("video", "You said: What is a fugue?")


def test_in_chat_each_recording_is_a_message(parrot):
    told = parrot("duplex", "one.wav", "two.wav", "--mode", "chat", "--json").json
    assert (told["runtime_mode"], [answer["reason"] for answer in told["answers"]]) == ("turn_based", ["turn_end", "turn_end"])
    assert [answer["text"] for answer in told["answers"]] == ["You said: speech of 400 ms"] * 2
    assert told["answers"][0]["answer_ms"] == 0


def test_an_answer_in_chat_has_sound_where_it_is_wanted(parrot, home):
    assert parrot("duplex", "one.wav", "--mode", "chat", "-o", "answer.wav").code == 0
    assert (home / "answer.wav").stat().st_size > 1000


def test_an_answer_without_a_voice_has_no_file(parrot, home):
    result = parrot("duplex", "one.wav", "--fast", "-o", "answer.wav", "--model", "mute")
    assert (result.code, ", first audio - ms" in result.out) == (0, True)
    assert "the answer has no audio, so answer.wav is not written" in result.err
    assert not (home / "answer.wav").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--model", "deaf"), "can't do mode=audio"),
        (("--model", "mortal", "--chunk-ms", "100"), "The server has closed the session: backend_error (Its power went out)."),
        (("--model", "broken", "--mode", "chat"), "It broke."),
        (("--url", "http://127.0.0.1:1"), "No answer from http://127.0.0.1:1"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(parrot, arguments, reason):
    result = parrot("duplex", "one.wav", "--fast", *arguments)
    assert result.code == 1
    assert reason in result.err.splitlines()[-1]


def test_mistakes_are_told_before_anything_starts(parrot, home):
    (home / "empty").mkdir()
    (home / "not.mp4").write_bytes(b"no film")
    for arguments, reason in (
        ((), "at least one recording"),
        (("none.wav",), "can't be read: No such file"),
        (("one.wav", "-o", "nowhere/answer.wav"), "There is no folder"),
        (("one.wav", "-o", "."), "is a folder; -o takes the name of a WAV file"),
        (("one.wav", "--chunk-ms", "5"), "--chunk-ms takes 20 to 5000"),
        (("one.wav", "--mode", "audio", "--video", "empty"), "which sends no pictures"),
        (("one.wav", "--video", "empty"), "no JPEG files in empty"),
        (("one.wav", "--video", "none"), "no JPEG files in none"),
        (("one.wav", "--video", "not.mp4"), "not.mp4"),
    ):
        result = parrot("duplex", *arguments)
        assert (result.code, result.out) == (2, "")
        assert reason in result.err
        assert "engine starts" not in result.err
