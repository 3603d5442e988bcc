"""`antiphon doctor`."""

import socket
from collections.abc import Iterator

import pytest

from support.cli.hollow import hollow


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


def by_subject(result) -> dict[str, dict[str, str]]:
    return {found["subject"]: found for found in result.json}


def test_every_finding_has_a_line(antiphon, free_port):
    result = antiphon("doctor", ANTIPHON_PORT=free_port)
    assert result.code == 0, result.out
    assert [line.split()[1] for line in result.out.splitlines()][:2] == ["python", "packages"]


def test_a_port_that_someone_has_is_missing(antiphon, taken_port):
    result = antiphon("doctor", "--json", ANTIPHON_PORT=taken_port)
    assert result.code == 1
    assert by_subject(result)["server"]["state"] == "missing"
    assert "ANTIPHON_PORT" in by_subject(result)["server"]["remedy"]


def test_a_free_port_is_where_a_server_could_be(antiphon, free_port):
    assert by_subject(antiphon("doctor", "--json", ANTIPHON_PORT=free_port))["server"]["remedy"] == "antiphon serve"


def test_a_data_folder_that_is_a_file_can_not_be_written(antiphon, home, free_port):
    (home / "file").write_text("")
    result = antiphon("doctor", "--json", ANTIPHON_HOME=str(home / "file" / "inside"), ANTIPHON_PORT=free_port)
    assert result.code == 1
    assert by_subject(result)["data folder"]["state"] == "missing"


def test_a_folder_still_to_be_made_is_fine_where_it_can_be_made(antiphon, home, free_port):
    result = antiphon("doctor", "--json", ANTIPHON_HOME=str(home / "new" / "deep"), ANTIPHON_PORT=free_port)
    assert by_subject(result)["data folder"]["state"] == "ok"
    assert not (home / "new").exists()


def test_a_mistake_in_the_configuration_is_a_finding_and_ends_the_look(antiphon, home):
    (home / "antiphon.toml").write_text("[server]\nprot = 1\n")
    result = antiphon("doctor", "--json")
    assert result.code == 1
    assert list(by_subject(result)) == ["python", "packages", "configuration"]
    assert "did you mean 'port'" in by_subject(result)["configuration"]["detail"]


def test_a_machine_without_the_models_of_speech_is_told_how_to_get_them(antiphon, free_port):
    speech = by_subject(antiphon("doctor", "--json", ANTIPHON_PORT=free_port))["speech"]
    assert speech["state"] == "note"
    assert "moonshine-tiny-en" in speech["detail"]
    assert speech["remedy"] == "antiphon models pull --speech"


def test_a_voice_that_was_chosen_is_fetched_by_its_name(antiphon, free_port):
    speech = by_subject(antiphon("doctor", "--json", ANTIPHON_PORT=free_port, ANTIPHON_SPEECH__VOICE="kokoro-82m-int8"))["speech"]
    assert speech["remedy"] == "antiphon models pull silero-vad smart-turn-v3.2 moonshine-tiny-en kokoro-82m-int8"


ROUTED = """
[[models]]
name = "small"
engine = "scripted"

[routing]
default = "%s"

[[routing.examples]]
category = "code"
model = "small"
texts = ["Fix it."]
"""


def test_a_route_needs_the_model_that_compares_its_examples(antiphon, home, free_port):
    (home / "antiphon.toml").write_text(ROUTED % "small")
    lines = antiphon("doctor", "--json", ANTIPHON_PORT=str(free_port)).json
    found = {line["subject"]: line for line in lines}
    assert (found["routing"]["state"], found["routing"]["detail"]) == ("ok", "auto")
    assert "all-minilm-l6-v2" in found["weights"]["detail"]


def test_a_route_to_no_model_is_missing(antiphon, home, free_port):
    (home / "antiphon.toml").write_text(ROUTED % "big")
    (line,) = (line for line in antiphon("doctor", ANTIPHON_PORT=str(free_port)).out.splitlines() if " routing " in line)
    assert "routing[0].default: there is no model 'big'; there is 'small'" in line


def test_a_model_that_is_configured_wrongly_is_missing(antiphon, home, free_port):
    assert by_subject(antiphon("doctor", "--json", ANTIPHON_PORT=free_port))["models"]["state"] == "ok"
    (home / "antiphon.toml").write_text("[[models]]\nname = 'a'\nengine = 'local'\nmodl = 'x'\n")
    result = antiphon("doctor", "--json", ANTIPHON_PORT=free_port)
    assert (by_subject(result)["models"]["state"], result.code) == ("missing", 1)
    assert by_subject(result)["models"]["detail"].startswith(
        f"{home / 'antiphon.toml'}:4: Model 'a' has 'modl'; the engine 'local' knows 'model'"
    )


def test_a_key_that_is_not_set_is_a_note(antiphon, home, taken_port):
    (home / "antiphon.toml").write_text(
        f'[[models]]\nname = "a"\nengine = "chat"\nbase_url = "http://127.0.0.1:{taken_port}/v1"\napi_key_env = "NOT_SET"\n'
    )
    result = antiphon("doctor", "--json", ANTIPHON_PORT="0")
    assert [(found["state"], found["detail"]) for found in result.json if found["subject"] == "models"] == [
        ("ok", "a"),
        ("note", "Model 'a': NOT_SET is not set in the environment, so its server gets requests without a key"),
    ]
    assert result.code == 0
    with_key = antiphon("doctor", "--json", ANTIPHON_PORT="0", NOT_SET="sk-1")
    assert by_subject(with_key)["models"]["state"] == "ok"


def test_mistakes_in_the_configuration_are_told_apart(antiphon, home):
    (home / "antiphon.toml").write_text("[server]\nprot = 1\nhots = 1\n")
    assert by_subject(antiphon("doctor", "--json"))["configuration"]["detail"].count("; " + str(home)) == 1


def test_the_models_of_speech_are_named_where_they_are_here(antiphon, home, free_port):
    hollow(home / "models", is_remembered=True)
    result = antiphon("doctor", "--json", ANTIPHON_PORT=free_port, ANTIPHON_MODELS=str(home / "models"))
    assert by_subject(result)["speech"] == {
        "subject": "speech",
        "state": "ok",
        "detail": "silero-vad, smart-turn-v3.2, moonshine-tiny-en, piper-en-us-joe-medium",
        "remedy": "",
    }


def test_models_of_speech_that_were_altered_are_named(antiphon, home, free_port):
    hollow(home / "models", is_remembered=False)
    result = antiphon("doctor", "--json", ANTIPHON_PORT=free_port, ANTIPHON_MODELS=str(home / "models"))
    speech = by_subject(result)["speech"]
    assert (speech["state"], result.code) == ("missing", 1)
    assert speech["detail"].startswith("altered since they were fetched: silero-vad")
    assert speech["remedy"] == "antiphon models pull --speech"


def test_a_store_that_is_away_is_missing(antiphon, free_port):
    url = "postgresql://me:hush@127.0.0.1:1/db"
    result = antiphon("doctor", "--json", ANTIPHON_STORE__URL=url, ANTIPHON_PORT=free_port)
    store = by_subject(result)["store"]
    assert (result.code, store["state"]) == (1, "missing")
    assert "postgresql://me:***@127.0.0.1:1/db can't be opened" in store["detail"]


def test_a_store_that_is_no_database_is_missing_and_stays_as_it_is(antiphon, home, free_port):
    (home / "store").write_text("This is no database, and it is long enough to be taken for one." * 20)
    result = antiphon("doctor", "--json", ANTIPHON_STORE__URL=f"sqlite:///{home}/store", ANTIPHON_PORT=free_port)
    assert (result.code, by_subject(result)["store"]["state"]) == (1, "missing")
    assert (home / "store").read_text().startswith("This is no database")


def test_a_store_still_to_be_made_is_fine_and_is_not_made(antiphon, home, free_port):
    result = antiphon("doctor", "--json", ANTIPHON_STORE__URL=f"sqlite:///{home}/new", ANTIPHON_PORT=free_port)
    assert by_subject(result)["store"]["state"] == "ok"
    assert not (home / "new").exists()


def test_a_store_that_is_in_use_is_fine(antiphon, home, free_port):
    antiphon("keys", "create", "--name", "a")
    store = by_subject(antiphon("doctor", "--json", ANTIPHON_PORT=free_port))["store"]
    assert store["state"] == "ok" and store["detail"].endswith("antiphon.sqlite3")


def test_recordings_that_can_not_be_written_are_missing(antiphon, home, free_port):
    (home / "file").write_text("")
    environ = {"ANTIPHON_RECORDING__WHEN": "always", "ANTIPHON_RECORDING__URL": str(home / "file" / "inside")}
    result = antiphon("doctor", "--json", ANTIPHON_PORT=free_port, **environ)
    assert (result.code, by_subject(result)["recordings"]["state"]) == (1, "missing")


def test_a_model_server_that_is_down_is_a_failure_with_its_address(antiphon, home, free_port):
    (home / "antiphon.toml").write_text(
        f'[[models]]\nname = "*"\nengine = "chat"\nbase_url = "http://127.0.0.1:{free_port}/v1?api_key=sk-secret"\n'
    )
    result = antiphon("doctor", "--json", ANTIPHON_PORT="0")
    assert by_subject(result)["upstream"] == {
        "subject": "upstream",
        "state": "fail",
        "detail": f"* at http://127.0.0.1:{free_port}/v1?api_key=***: connection refused",
        "remedy": "start it, or correct base_url",
    }
    assert result.code == 1


def test_a_model_server_that_listens_is_fine(antiphon, home, taken_port):
    (home / "antiphon.toml").write_text(f'[[models]]\nname = "a"\nengine = "chat"\nbase_url = "http://127.0.0.1:{taken_port}/v1"\n')
    found = by_subject(antiphon("doctor", "--json", ANTIPHON_PORT="0"))["upstream"]
    assert (found["state"], found["detail"]) == ("ok", f"a at http://127.0.0.1:{taken_port}/v1: it listens")
