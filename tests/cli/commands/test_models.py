"""`antiphon models`, on a machine that has none."""

import shutil

import pytest

from support.cli.hollow import hollow

SMALL = "smollm2-135m-instruct"


def test_list_has_a_line_for_every_model_and_says_which_are_here(antiphon):
    lines = antiphon("models", "list").out.splitlines()
    assert lines[0].split()[:5] == ["NAME", "KIND", "SIZE", "LICENCE", "STATE"]
    assert [SMALL, "llm", "98", "MB", "Apache-2.0", "-"] in [line.split()[:6] for line in lines]
    assert ["silero-vad", "vad", "2", "MB", "MIT", "-"] in [line.split()[:6] for line in lines]


def test_list_as_json_tells_the_default_of_each_kind(antiphon):
    models = antiphon("models", "list", "--json").json
    assert {model["kind"]: model["name"] for model in models if model["default"]} == {
        "llm": "qwen2.5-coder-1.5b-instruct",
        "vad": "silero-vad",
        "turn": "smart-turn-v3.2",
        "stt": "moonshine-tiny-en",
        "tts": "piper-en-us-joe-medium",
        "embedding": "all-minilm-l6-v2",
    }
    assert {model["state"] for model in models} == {"absent"}


def test_a_half_downloaded_model_is_here_in_part_and_can_be_removed(antiphon, home):
    folder = home / "models" / SMALL
    folder.mkdir(parents=True)
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf.part").write_bytes(bytes(2_000_000))
    place = {"ANTIPHON_MODELS": str(home / "models")}
    assert antiphon("models", "show", SMALL, "--json", **place).json["state"] == "partial"
    assert antiphon("models", "rm", SMALL, **place).out == f"{SMALL}: 2 MB freed\n"
    assert antiphon("models", "show", SMALL, "--json", **place).json["state"] == "absent"


def test_removing_a_model_that_is_not_here_is_a_failure(antiphon, home):
    result = antiphon("models", "rm", SMALL, ANTIPHON_MODELS=str(home / "models"))
    assert (result.code, result.out, result.err) == (1, "", f"antiphon: {SMALL} is not here\n")


def test_a_download_that_never_began_is_no_part_of_a_model(antiphon, home):
    (home / "models" / SMALL).mkdir(parents=True)
    (home / "models" / SMALL / ".lock").touch()
    assert antiphon("models", "show", SMALL, "--json", ANTIPHON_MODELS=str(home / "models")).json["state"] == "absent"


def test_a_model_of_several_files_is_a_folder_once_fetched(antiphon, home):
    hollow(home / "models", is_remembered=True)
    fetched = antiphon("models", "pull", "--speech", ANTIPHON_MODELS=str(home / "models")).out.splitlines()
    assert [line.rpartition("/")[2] for line in fetched] == [
        "silero_vad.onnx",
        "smart-turn-v3.2-cpu.onnx",
        "moonshine-tiny-en",
        "piper-en-us-joe-medium",
    ]


def test_every_model_that_can_not_be_had_is_a_line_and_keeps_no_other_from_being_fetched(antiphon, home):
    hollow(home / "models", is_remembered=True)
    shutil.rmtree(home / "models" / "silero-vad")
    (home / "models" / "silero-vad").write_text("in the way")
    result = antiphon("models", "pull", "--speech", ANTIPHON_MODELS=str(home / "models"))
    assert (result.code, len(result.out.splitlines()), len(result.err.splitlines())) == (1, 3, 1)
    assert "can't be used" in result.err


def test_show_has_the_hash_of_every_file(antiphon):
    shown = antiphon("models", "show", SMALL, "--json").json
    assert len(shown["files"][0]["sha256"]) == 64
    assert shown["files"][0]["sha256"] in antiphon("models", "show", SMALL).out


@pytest.mark.parametrize("verb", ["show", "pull", "rm"])
def test_a_model_that_there_is_none_of_is_answered_with_those_there_are(antiphon, verb):
    result = antiphon("models", verb, "gpt-9")
    assert result.code == 2
    assert f"The catalogue has no model 'gpt-9'; it has 'qwen2.5-coder-1.5b-instruct', '{SMALL}', 'silero-vad'" in result.err


def test_removing_nothing_asks_what(antiphon):
    assert antiphon("models", "rm").code == 2
