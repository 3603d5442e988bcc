"""The audio routes with real speech models."""

import io
import os
import re
from pathlib import Path

import openai
import pytest
import soundfile

from antiphon.server.processes.run import background_server
from support.server.scripted_server import SCRIPT, configured

RECORDINGS = Path(__file__).parents[2] / "speech" / "recordings"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    weights = os.environ.get("ANTIPHON_MODELS") or str(CACHE)
    models = {"parrot": {"engine": "scripted", **SCRIPT}}
    with background_server(configured(tmp_path_factory.mktemp("home"), models, models_dir=weights)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
            yield made


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def converted(name, kind, encoding, rate_hz=None):
    samples, own_hz = soundfile.read(RECORDINGS / f"{name}.wav")
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz or own_hz, format=kind, subtype=encoding)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "encoding"), [("WAV", "PCM_24"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III"), ("OGG", "OPUS")])
def test_people_are_understood_in_every_kind_of_file(client, kind, encoding):
    file = converted("lv_0890", kind, encoding)
    said = words(client.audio.transcriptions.create(model="whisper-1", file=("x", file)).text)
    read = words("unless to be rather cold hearted and rather selfish is to be ill disposed")
    assert len(said) - 2 <= len(read) <= len(said) + 2 and len(set(read) - set(said)) <= 2, said


@pytest.mark.parametrize("kind", ["mp3", "opus", pytest.param("wav", marks=pytest.mark.long), pytest.param("flac", marks=pytest.mark.long)])
def test_what_is_read_aloud_can_be_understood(client, kind):
    text = "The quick brown fox jumps over the lazy dog."
    sound = client.audio.speech.create(model="tts-1", voice="alloy", input=text, response_format=kind).content
    said = client.audio.transcriptions.create(model="whisper-1", file=(f"x.{kind}", sound)).text
    assert len(set(words(text)) - set(words(said))) <= 2, said  # a word may be misheard: no two readings are the same


@pytest.mark.long
def test_a_long_recording_is_written_down_from_its_beginning_to_its_end(client):
    once, rate_hz = soundfile.read(RECORDINGS / "lv_0890.wav")
    file = io.BytesIO()
    soundfile.write(file, [sample for _ in range(8) for sample in once], rate_hz, format="WAV")
    told = client.audio.transcriptions.create(model="whisper-1", file=("x.wav", file.getvalue()), response_format="verbose_json")
    assert told.duration == pytest.approx(8 * len(once) / rate_hz, abs=0.01)
    assert words(told.text).count("selfish") == 8
    assert len(told.segments) >= 3
