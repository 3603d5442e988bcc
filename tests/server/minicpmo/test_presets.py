"""Presets and voices over HTTP."""

import base64
import io
import json
import os

import aiohttp
import numpy as np
import pytest

from antiphon.audio import wav_file
from antiphon.server.processes.run import background_server
from support.server.key_server import KeyServer
from support.server.scripted_server import configured

pytestmark = pytest.mark.anyio

TONE = (8000 * np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)).astype("<i2").tobytes()
VOICE = wav_file(TONE, 48_000)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def url(tmp_path):
    folder = tmp_path / "presets"
    (folder / "omni").mkdir(parents=True)
    (folder / "voices").mkdir()
    (folder / "omni" / "anna.toml").write_text(
        'name = "Anna"\nsystem_prompt = "Be kind."\nref_audio = "anna.wav"\n'
        '[[system_content]]\ntext = "Like this:"\n[[system_content]]\naudio = "anna.wav"\n'
    )
    (folder / "omni" / "anna.wav").write_bytes(VOICE)
    (folder / "omni" / "gone.toml").write_text('name = "Gone"\nref_audio = "gone.wav"\n')
    (folder / "voices" / "default.wav").write_bytes(VOICE)
    with background_server(configured(tmp_path, {}, **{"logging.level": "error", "minicpmo.presets": str(folder)})) as address:
        yield address


async def asked(url, method, path, body=None, key=None):
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    content = None if body is None else io.BytesIO(json.dumps(body).encode())
    async with aiohttp.ClientSession() as http, http.request(method, url + path, data=content, headers=headers) as reply:
        return reply.status, await reply.json()


def is_the_tone(base64_floats):
    samples = np.frombuffer(base64.b64decode(base64_floats), "<f4")
    return len(samples) == 16_000 and abs(np.abs(samples[4000:12_000]).max() - 8000 / 32_768) < 0.01


async def test_presets_are_listed_without_their_sounds(url):
    status, told = await asked(url, "GET", "/api/presets")
    anna, gone = told["omni"]
    assert status == 200 and set(told) == {"omni"}
    assert (anna["id"], anna["name"], anna["system_prompt"]) == ("anna", "Anna", "Be kind.")
    assert anna["system_content"] == [
        {"type": "text", "text": "Like this:"},
        {"type": "audio", "name": "anna.wav", "path": "anna.wav", "duration": 1.0},
    ]
    assert anna["ref_audio"] == {"name": "anna.wav", "path": "anna.wav", "duration": 1.0}
    assert gone["ref_audio"]["duration"] == 0.0


async def test_a_sound_is_measured_again_only_when_it_has_changed(url, tmp_path):
    async def duration_s():
        return (await asked(url, "GET", "/api/presets"))[1]["omni"][0]["ref_audio"]["duration"]

    file = tmp_path / "presets" / "omni" / "anna.wav"
    status = file.stat()
    assert await duration_s() == 1.0
    # As long and as old as before, and no sound any more: whoever measures it finds none.
    file.write_bytes(bytes(len(VOICE)))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert await duration_s() == 1.0
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    assert await duration_s() == 0.0
    file.write_bytes(wav_file(TONE + TONE, 48_000))
    assert await duration_s() == 2.0


async def test_the_sounds_of_a_preset_are_as_a_session_takes_them(url):
    status, told = await asked(url, "GET", "/api/presets/omni/anna/audio")
    assert status == 200 and told["ref_audio"]["duration"] == 1.0
    assert is_the_tone(told["ref_audio"]["data"]) and is_the_tone(told["system_content_audio"][0]["data"])
    for path in ("/api/presets/omni/gone/audio", "/api/presets/omni/none/audio", "/api/presets/..%2Fx/anna/audio"):
        assert (await asked(url, "GET", path))[0] == 404


async def test_the_default_voice_is_as_a_session_takes_it(url):
    status, told = await asked(url, "GET", "/api/default_ref_audio")
    assert status == 200 and is_the_tone(told.pop("base64"))
    assert told == {"name": "default.wav", "duration": 1.0, "sample_rate": 16_000, "samples": 16_000}


async def test_a_voice_is_kept_found_and_dropped(url):
    upload = {"name": "Carla", "audio_base64": base64.b64encode(VOICE).decode()}
    status, kept = await asked(url, "POST", "/api/assets/ref_audio", upload)
    assert status == 200 and kept["success"] and kept["name"] == "Carla"
    _, listed = await asked(url, "GET", "/api/assets/ref_audio")
    assert listed["total"] == 1 and listed["ref_audios"][0] | {"created_at": ""} == {
        **{"id": kept["id"], "name": "Carla", "source_type": "upload", "duration_ms": 1000, "sample_rate": 16_000, "created_at": ""}
    }
    assert is_the_tone((await asked(url, "GET", f"/api/assets/ref_audio/{kept['id']}"))[1]["base64"])
    assert (await asked(url, "DELETE", f"/api/assets/ref_audio/{kept['id']}"))[0] == 200
    assert (await asked(url, "DELETE", f"/api/assets/ref_audio/{kept['id']}"))[0] == 404
    assert (await asked(url, "GET", "/api/assets/ref_audio"))[1]["total"] == 0


@pytest.mark.parametrize(
    ("name", "file", "status", "param"),
    [
        ("", VOICE, 400, "name"),
        ("x", b"no sound", 400, "audio_base64"),
        ("x", wav_file(bytes(2 * 8000 * 61), 8000), 400, "audio_base64"),
        ("x", bytes((10 << 20) + 1), 413, "audio_base64"),
    ],
    ids=["no name", "no sound", "too long", "too large"],
)
async def test_what_is_no_voice_is_refused(url, name, file, status, param):
    upload = {"name": name, "audio_base64": base64.b64encode(file).decode()}
    got, told = await asked(url, "POST", "/api/assets/ref_audio", upload)
    assert (got, told["error"]["param"]) == (status, param)


async def test_a_page_is_told_what_it_begins_with(url):
    assert await asked(url, "GET", "/api/frontend_defaults") == (200, {"playback_delay_ms": 200})


async def test_whoever_holds_sessions_may_read_and_only_admins_may_write(tmp_path):
    keyed = KeyServer(tmp_path)
    key, admin = await keyed.key(), await keyed.key(scopes=["admin"])
    with keyed.serving() as url:
        assert (await asked(url, "GET", "/api/presets"))[0] == 401
        assert (await asked(url, "GET", "/api/presets", key=key)) == (200, {})
        assert (await asked(url, "POST", "/api/assets/ref_audio", {}, key=key))[0] == 403
        assert (await asked(url, "POST", "/api/assets/ref_audio", {}, key=admin))[0] == 400
        assert (await asked(url, "DELETE", "/api/assets/ref_audio/ref_1", key=key))[0] == 403
