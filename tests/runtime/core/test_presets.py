"""The folder of presets and voices."""

import shutil

import pytest

from antiphon.audio import wav_file
from antiphon.errors import ClientError, ServerError
from antiphon.runtime.core import presets
from antiphon.runtime.core.presets import PresetFolder

SOUND = wav_file(bytes(32_000), 16_000)


@pytest.fixture
def path(tmp_path):
    for folder in ("omni", "voices", "no mode"):
        (tmp_path / folder).mkdir()
    (tmp_path / "omni" / "anna.toml").write_text('name = "Anna"\norder = 2\nsystem_prompt = "Be kind."\nref_audio = "anna.wav"\n')
    (tmp_path / "omni" / "ben.toml").write_text(
        'name = "Ben"\norder = 1\n[[system_content]]\ntext = "Hi"\n[[system_content]]\naudio = "b.wav"\n'
    )
    (tmp_path / "voices" / "anna.wav").write_bytes(SOUND)
    return tmp_path


def test_presets_are_found_by_mode_in_their_order(path):
    (path / "no mode" / "lost.toml").write_text('name = "Lost"')
    found = PresetFolder(path).presets()
    assert {mode: [id for id, _ in each] for mode, each in found.items()} == {"omni": ["ben", "anna"]}
    assert found["omni"][1][1].system_prompt == "Be kind."


def test_a_folder_that_is_not_there_has_nothing(tmp_path):
    folder = PresetFolder(tmp_path / "none")
    assert folder.presets() == {} and folder.voices() == []


@pytest.mark.parametrize(
    "text",
    [
        "name = ",
        "order = 1",
        'name = "x"\nsing = true',
        'name = "x"\nref_audio = "../secret.wav"',
        'name = "x"\n[[system_content]]\n',
        "\xff",
    ],
)
def test_a_preset_that_can_not_be_read_is_left_out_and_told_to_the_operator(path, text):
    (path / "omni" / "bad.toml").write_bytes(text.encode("latin-1"))
    told = []
    assert len(PresetFolder(path, told.append).presets()["omni"]) == 2
    assert len(told) == 1 and "omni/bad.toml" in told[0]


def test_a_preset_that_is_too_large_is_not_read(path):
    (path / "omni" / "large.toml").write_text('name = "x"\n' + "#" * presets.PRESET_LIMIT_BYTES)
    told = []
    assert len(PresetFolder(path, told.append).presets()["omni"]) == 2 and told


@pytest.mark.parametrize(("mode", "id"), [("omni", "none"), ("..", "anna"), ("omni", "../omni/anna"), ("voices", "anna"), ("", "")])
def test_what_is_no_preset_is_not_found(path, mode, id):
    with pytest.raises(ClientError) as refused:
        PresetFolder(path).preset(mode, id)
    assert refused.value.status == 404


def test_a_sound_is_beside_its_preset_or_among_the_voices(path):
    (path / "omni" / "b.wav").write_bytes(b"beside")
    folder = PresetFolder(path)
    assert folder.read_audio("omni", "b.wav") == b"beside"
    assert folder.read_audio("omni", "anna.wav") == SOUND
    for name in ("none.wav", "anna.toml", "../voices/anna.wav", ".wav"):
        with pytest.raises(ClientError):
            folder.read_audio("omni", name)


def test_the_default_voice_is_the_one_of_that_name(path):
    folder = PresetFolder(path)
    with pytest.raises(ClientError) as refused:
        folder.default_voice()
    assert refused.value.status == 404
    (path / "voices" / "default.flac").write_bytes(SOUND)
    assert folder.default_voice() == ("default.flac", SOUND)


def test_what_has_the_name_of_a_sound_and_is_no_file_is_not_found(path):
    (path / "omni" / "b.wav").mkdir()
    (path / "omni" / "anna.wav").mkdir()
    (path / "voices" / "default.wav").mkdir()
    (path / "voices" / "default.flac").write_bytes(SOUND)
    folder = PresetFolder(path)
    assert folder.read_audio("omni", "anna.wav") == SOUND  # that among the voices
    with pytest.raises(ClientError) as refused:
        folder.read_audio("omni", "b.wav")
    assert refused.value.status == 404
    assert folder.default_voice() == ("default.flac", SOUND)


@pytest.mark.parametrize("in_the_way", ["voices", "voices/ref_1.wav/x", "voices/ref_1.json/x"])
def test_of_a_voice_that_could_not_be_written_nothing_is_left(tmp_path, in_the_way):
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ServerError) as failed:
        PresetFolder(tmp_path).save_voice("ref_1", "Carla", bytes(32_000))
    assert "could not be written" in failed.value.message
    assert sorted(tmp_path.rglob("*")) == before


def test_a_voice_is_kept_until_it_is_dropped(tmp_path):
    folder = PresetFolder(tmp_path / "new")
    kept = folder.save_voice("ref_1", "Carla", bytes(32_000))
    assert (kept.name, kept.duration_ms) == ("Carla", 1000)
    assert folder.voices() == [kept]
    assert folder.voice("ref_1") == (kept, SOUND)
    assert folder.delete_voice("ref_1") == kept
    assert folder.voices() == [] and list((tmp_path / "new" / "voices").iterdir()) == []
    for what in (folder.voice, folder.delete_voice):
        with pytest.raises(ClientError):
            what("ref_1")


def test_there_may_be_only_so_many_voices(tmp_path):
    folder = PresetFolder(tmp_path)
    folder.save_voice("ref_0", "x", b"\0\0")
    first = [*(tmp_path / presets.VOICES).iterdir()]
    for number in range(1, presets.MAX_PRESETS - 1):  # to save each would read all before it
        for file in first:
            shutil.copy(file, file.with_stem(f"ref_{number}"))
    folder.save_voice("ref_last", "x", b"\0\0")
    assert len(folder.voices()) == presets.MAX_PRESETS
    with pytest.raises(ClientError) as refused:
        folder.save_voice("ref_one_more", "x", b"\0\0")
    assert refused.value.code == "too_many_voices"
