"""Recordings in, and spoken answers out of, the Responses API, over a real socket."""

import base64
import json
import os
from pathlib import Path

import openai
import pytest
from openai.types.responses import ResponseStreamEvent

from antiphon.audio import duration_ms, wav_file
from antiphon.server.processes.run import background_server
from support.server.plain_http import events_in, post
from support.server.scripted_server import SCRIPT, configured
from support.server.speech_server import speaking, tone
from support.wire.adapters import adapter

DEAF = {name: False for name in ("audio_in", "audio_out", "listens", "transcribes")}
MODELS = {"parrot": {"engine": "scripted", **SCRIPT}, "deaf": {"engine": "scripted", "abilities": DEAF, **SCRIPT}}
RECORDINGS = Path(__file__).parents[2] / "speech" / "recordings"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with speaking(tmp_path_factory.mktemp("home"), models=MODELS) as served:
        yield served


def beep(seconds):
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(wav_file(tone(seconds * 1000, 16_000), 16_000)).decode(), "format": "wav"},
    }


def asked(*content):
    return [{"role": "user", "content": list(content)}]


def text_of(body):
    return "".join(part["text"] for item in json.loads(body)["output"] for part in item["content"])


def sound_of(events):
    return b"".join(base64.b64decode(event["delta"]) for event in events if event["type"] == "response.audio.delta")


def test_a_recording_is_written_down_for_a_model_that_cannot_hear(served):
    status, _, body = post(served.url, {"model": "deaf", "input": asked({"type": "input_text", "text": "Hear: "}, beep(2))})
    assert status == 200, body
    assert text_of(body) == "You said: Hear: [2.0 s]"


def test_a_recording_is_written_down_once_however_long_the_conversation(served):
    served.transcriber.wishes.clear()
    _, _, first = post(served.url, {"model": "deaf", "input": asked(beep(1))})
    response_id = json.loads(first)["id"]
    status, _, second = post(served.url, {"model": "deaf", "input": "Again", "previous_response_id": response_id})
    assert status == 200 and text_of(second) == "You said: Again"
    assert len(served.transcriber.wishes) == 1


def test_a_recording_that_was_added_to_a_conversation_is_written_down_once(served):
    served.transcriber.wishes.clear()
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        conversation = client.post("/conversations", body={"items": asked(beep(1.5))}, cast_to=dict[str, object])["id"]
        for question in ("Well?", "Again?"):
            response = client.responses.create(model="deaf", input=question, conversation=conversation)
            assert response.output_text == f"You said: {question}"
    assert len(served.transcriber.wishes) == 1


def test_a_model_that_hears_gets_the_recording_itself(served):
    served.transcriber.wishes.clear()
    assert post(served.url, {"model": "parrot", "input": asked(beep(1))})[0] == 200
    assert served.transcriber.wishes == []


def test_tokens_are_counted_of_what_was_said(served):
    status, _, body = post(served.url, {"model": "deaf", "input": asked(beep(1))}, "/v1/responses/input_tokens")
    assert (status, json.loads(body)["input_tokens"]) == (200, 2)


@pytest.mark.parametrize(("data", "message"), [("%%%", "base64"), (base64.b64encode(b"hello").decode(), "Invalid file format")])
def test_what_is_no_recording_is_refused_by_its_place(served, data, message):
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}}
    status, _, body = post(served.url, {"model": "deaf", "input": asked(part)})
    error = json.loads(body)["error"]
    assert (status, error["param"], error["code"]) == (400, "input[0].content[0].input_audio.data", "invalid_value")
    assert message in error["message"]


def test_a_spoken_answer_comes_with_its_sound(served):
    status, _, body = post(
        served.url, {"model": "parrot", "input": "Hello", "stream": True, "modalities": ["text", "audio"], "audio": {"voice": "any"}}
    )
    assert status == 200, body
    events = events_in(body)
    for event in events:
        adapter(ResponseStreamEvent).validate_python(event)
    assert duration_ms(len(sound_of(events)), 24_000) == 60 * len("You said: Hello")
    said = "".join(event["delta"] for event in events if event["type"] == "response.audio.transcript.delta")
    assert said == events[-1]["response"]["output"][0]["content"][0]["text"] == "You said: Hello"


def test_sound_is_refused_where_the_model_has_no_voice_and_where_nobody_streams(served):
    for fields in ({"model": "deaf", "stream": True}, {"model": "parrot"}):
        status, _, body = post(served.url, {"input": "Hello", "modalities": ["text", "audio"], **fields})
        assert (status, json.loads(body)["error"]["param"]) == (400, "modalities")


@pytest.mark.weights
def test_a_model_that_neither_hears_nor_speaks_is_asked_aloud_and_answers_aloud(tmp_path):
    weights = Path(os.environ.get("ANTIPHON_MODELS") or CACHE)
    part = {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode((RECORDINGS / "cards_001.wav").read_bytes()).decode(), "format": "wav"},
    }
    with background_server(configured(tmp_path, MODELS, models_dir=str(weights))) as url:
        request = {"model": "deaf", "input": asked(part), "stream": True, "modalities": ["text", "audio"], "audio": {"voice": "alloy"}}
        status, _, body = post(url, request)
        assert status == 200, body
        events = events_in(body)
        text = events[-1]["response"]["output"][0]["content"][0]["text"]
        assert "clubs" in text.lower() and text.startswith("You said:")
        sound = sound_of(events)
        assert duration_ms(len(sound), 24_000) > 800
        again = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav_file(sound, 24_000)).decode(), "format": "wav"}}
        status, _, body = post(url, {"model": "deaf", "input": asked(again)})
        assert status == 200 and "you said" in text_of(body).lower() and "clubs" in text_of(body).lower()
