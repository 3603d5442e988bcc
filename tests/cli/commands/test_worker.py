"""`antiphon worker`, up to where it would dial."""

import pytest

JOIN = ("worker", "--join", "ws://127.0.0.1:9", "--engine", "scripted", "--model", "far")


@pytest.mark.parametrize("key", [{}, {"ANTIPHON_WORKER_KEY": ""}, {"ANTIPHON_WORKER_KEY": " \n"}], ids=["none", "empty", "blank"])
def test_a_worker_without_a_key_does_not_start(antiphon, key):
    done = antiphon(*JOIN, **key)
    assert done.code == 2
    assert "needs the server's key" in done.err
    assert "ANTIPHON_WORKER_KEY" in done.err


def test_the_key_may_be_in_another_variable(antiphon):
    done = antiphon(*JOIN, "--key-env", "MY_KEY", ANTIPHON_WORKER_KEY="of another")
    assert done.code == 2
    assert "MY_KEY is empty" in done.err


def test_a_file_for_the_key_that_is_not_there_is_told(antiphon, home):
    done = antiphon(*JOIN, ANTIPHON_WORKER_KEY_FILE=str(home / "none"))
    assert done.code == 2
    assert "ANTIPHON_WORKER_KEY_FILE" in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--join", "gateway:8642"), "ws://gateway:8642"),
        (("--join", "ftp://gateway"), "ws://gateway:8642"),
        (("--join", "ws://gateway/v1"), "without a path"),
        (("--slots", "0"), "1 or more"),
        (("--drain-s", "-1"), "0 or more"),
        (("--drain-s", "nan"), "0 or more"),
        (("--engine", "worker"), "can't be 'worker'"),
        (("--kind", "phone"), "'phone'"),
        (("--option", "pace_ms"), "key=value"),
    ],
)
def test_what_was_typed_wrongly_is_told(antiphon, arguments, told):
    given = dict(zip(JOIN[1::2], JOIN[2::2], strict=True)) | dict([arguments])
    done = antiphon("worker", *(part for pair in given.items() for part in pair), ANTIPHON_WORKER_KEY="key")
    assert done.code == 2
    assert told in done.err


def test_a_model_must_be_named(antiphon):
    done = antiphon(*JOIN[:-2], ANTIPHON_WORKER_KEY="key")
    assert done.code == 2
    assert "--model" in done.err


def test_what_the_engine_has_against_its_options_is_told_before_it_dials(antiphon):
    done = antiphon(
        "worker", *JOIN[1:3], "--engine", "local", "--option", "model=none-such", "--option", "slots=2", ANTIPHON_WORKER_KEY="key"
    )
    assert done.code == 2
    assert "none-such" in done.err
    done = antiphon("worker", *JOIN[1:3], "--engine", "chatty", "--model", "far", ANTIPHON_WORKER_KEY="key")
    assert done.code == 2
    assert "no engine 'chatty'" in done.err


def test_ears_are_put_around_an_engine_only_where_it_has_none_and_they_are_here(antiphon, home):
    done = antiphon(*JOIN, "--speech", ANTIPHON_WORKER_KEY="key")
    assert done.code == 1
    assert "its own speech recognition" in done.err
    mute = "abilities={audio_in = false, audio_out = false, listens = false}"
    done = antiphon(*JOIN, "--speech", "--option", mute, ANTIPHON_WORKER_KEY="key", ANTIPHON_MODELS=str(home / "none"))
    assert done.code == 1
    assert "Speech is not available here" in done.err
    assert "antiphon models pull" in done.err
