"""Recordings in, and spoken answers out of, Chat Completions, over a real socket."""

import base64
import io
import json
import os
import wave
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletion as TheirCompletion

from antiphon.audio import duration_ms, wav_file
from antiphon.server.processes.run import background_server
from support.server.plain_http import post
from support.server.scripted_server import SCRIPT, configured
from support.server.speech_server import speaking, tone

PATH = "/v1/chat/completions"
DEAF = {name: False for name in ("audio_in", "audio_out", "listens", "transcribes")}
MODELS = {"parrot": {"engine": "scripted", **SCRIPT}, "deaf": {"engine": "scripted", "abilities": DEAF, **SCRIPT}}
RECORDINGS = Path(__file__).parents[2] / "speech" / "recordings"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"
SPOKEN = {"modalities": ["text", "audio"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with speaking(tmp_path_factory.mktemp("home"), models=MODELS) as served:
        yield served


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def recording(data, kind="wav"):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": kind}}


def beep(seconds):
    return recording(wav_file(tone(seconds * 1000, 16_000), 16_000))


def asked(*content):
    return [{"role": "user", "content": list(content)}]


def test_a_recording_is_written_down_for_a_model_that_cannot_hear(client):
    completion = client.chat.completions.create(model="deaf", messages=asked({"type": "text", "text": "Hear: "}, beep(2)))
    assert completion.choices[0].message.content == "You said: Hear: [2.0 s]"


def test_a_model_that_hears_gets_the_recording_itself(served, client):
    served.transcriber.wishes.clear()
    assert client.chat.completions.create(model="parrot", messages=asked(beep(1))).choices
    assert served.transcriber.wishes == []


@pytest.mark.parametrize(("data", "message"), [("%%%", "base64"), (base64.b64encode(b"hello").decode(), "Invalid file format")])
def test_what_is_no_recording_is_refused_by_its_place(served, data, message):
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}}
    status, _, body = post(served.url, {"model": "deaf", "messages": asked({"type": "text", "text": "x"}, part)}, PATH)
    error = json.loads(body)["error"]
    assert (status, error["param"], error["code"]) == (400, "messages[0].content[1].input_audio.data", "invalid_value")
    assert message in error["message"]


def test_a_streamed_answer_comes_with_its_sound(client):
    sound, words, ids = b"", "", []
    stream = client.chat.completions.create(
        model="parrot", messages=asked({"type": "text", "text": "Hello"}), stream=True, audio={"voice": "any", "format": "pcm16"}, **SPOKEN
    )
    for chunk in stream:
        delta = chunk.choices[0].delta
        assert not delta.content
        if audio := delta.audio:
            sound += base64.b64decode(audio.data or "")
            words += audio.transcript or ""
            ids += [audio.id] if audio.id else []
            last = audio
    assert words == "You said: Hello"
    assert duration_ms(len(sound), 24_000) == 60 * len(words)
    assert len(ids) == 1 and last.expires_at


@pytest.mark.parametrize(("kind", "magic"), [("wav", b"RIFF"), ("mp3", b"\xff"), ("flac", b"fLaC"), ("opus", b"OggS"), ("pcm16", b"")])
def test_a_whole_answer_has_a_file_of_any_format(client, kind, magic):
    completion = client.chat.completions.create(
        model="parrot", messages=asked({"type": "text", "text": "Hello"}), audio={"voice": "any", "format": kind}, **SPOKEN
    )
    TheirCompletion.model_validate(completion.model_dump(), strict=True)
    message = completion.choices[0].message
    assert (message.content, message.audio.transcript) == (None, "You said: Hello")
    file = base64.b64decode(message.audio.data)
    assert file.startswith(magic)
    if kind == "wav":
        with wave.open(io.BytesIO(file)) as opened:
            assert opened.getnframes() / opened.getframerate() == pytest.approx(0.9)
    assert completion.usage.completion_tokens_details.audio_tokens > 0


@pytest.mark.long
@pytest.mark.weights
def test_a_model_that_neither_hears_nor_speaks_is_asked_aloud_and_answers_aloud(tmp_path):
    weights = Path(os.environ.get("ANTIPHON_MODELS") or CACHE)
    question = recording((RECORDINGS / "cards_001.wav").read_bytes())
    with (
        background_server(configured(tmp_path, MODELS, models_dir=str(weights))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        completion = client.chat.completions.create(
            model="deaf", messages=asked(question), audio={"voice": "alloy", "format": "wav"}, **SPOKEN
        )
        audio = completion.choices[0].message.audio
        assert audio.transcript.startswith("You said:") and "clubs" in audio.transcript.lower()
        again = client.chat.completions.create(model="deaf", messages=asked(recording(base64.b64decode(audio.data))))
        assert "clubs" in again.choices[0].message.content.lower()
