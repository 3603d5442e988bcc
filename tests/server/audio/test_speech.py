"""Text to speech over a real socket, with the official client and plain HTTP."""

import base64
import io
import json
import urllib.error
import urllib.request

import openai
import pytest
import soundfile

from antiphon.audio import duration_ms, streaming_wav_header
from support.server.plain_http import events_in
from support.server.raw_http import connect, request, rest_of, until
from support.server.speech_server import WORD_MS, speaking

RATE_HZ = 24_000


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with speaking(tmp_path_factory.mktemp("home")) as served:
        yield served


def posted(url, **fields):
    """Status, headers and body."""
    body = json.dumps({"model": "tts-1", "input": "one two", "voice": "alloy"} | fields).encode()
    asked = urllib.request.Request(f"{url}/v1/audio/speech", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def refused(url, **fields):
    """The status, code and param of a refusal."""
    status, _, body = posted(url, **fields)
    error = json.loads(body)["error"]
    return status, error["code"], error["param"]


def test_a_text_is_read_aloud_by_the_official_client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        reply = client.audio.speech.create(model="tts-1", voice="alloy", input="one two three four", response_format="pcm")
        assert duration_ms(len(reply.content), RATE_HZ) == pytest.approx(4 * WORD_MS, abs=20)
        with client.audio.speech.with_streaming_response.create(
            model="gpt-4o-mini-tts", voice="high", input="one two", response_format="wav", speed=2.0
        ) as stream:
            sound = b"".join(stream.iter_bytes())
    assert sound.startswith(streaming_wav_header(RATE_HZ))
    assert duration_ms(len(sound) - 44, RATE_HZ) == pytest.approx(WORD_MS, abs=20)
    assert served.synthesizer.said[-1] == ("one two", "high", 2.0)


@pytest.mark.parametrize(
    ("kind", "media_type", "begins"),
    [
        ("mp3", "audio/mpeg", b"\xff\xf3"),
        ("opus", "audio/ogg", b"OggS"),
        ("flac", "audio/flac", b"fLaC"),
        ("wav", "audio/wav", b"RIFF"),
        ("pcm", "audio/pcm", b""),
        ("aac", "audio/aac", b"\xff\xf1"),
    ],
)
def test_each_format_has_its_type(served, kind, media_type, begins):
    status, headers, sound = posted(served.url, response_format=kind)
    assert (status, headers["content-type"]) == (200, media_type)
    assert len(sound) > 500 and sound.startswith(begins)


def test_it_is_mp3_unless_said(served):
    assert posted(served.url)[1]["content-type"] == "audio/mpeg"


def test_with_sse_the_sound_comes_in_events(served):
    status, headers, body = posted(served.url, response_format="pcm", stream_format="sse")
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = events_in(body)
    *deltas, done = events
    assert {each["type"] for each in deltas} == {"speech.audio.delta"}
    sound = b"".join(base64.b64decode(each["audio"]) for each in deltas)
    assert duration_ms(len(sound), RATE_HZ) == pytest.approx(2 * WORD_MS, abs=20)
    assert done == {"type": "speech.audio.done", "usage": {"input_tokens": 2, "output_tokens": 10, "total_tokens": 12}}


def test_what_cannot_be_said_is_made_speakable(served):
    posted(served.url, input="**Bold** `code`.", response_format="pcm")
    assert "*" not in served.synthesizer.said[-1][0] and "`" not in served.synthesizer.said[-1][0]


def test_a_long_text_is_said_clause_by_clause(served):
    served.synthesizer.said.clear()
    posted(served.url, input="The first clause is this, and here is more of it. A second sentence. A third one!", response_format="pcm")
    said = [text.strip() for text, _, _ in served.synthesizer.said]
    assert said == ["The first clause is this,", "and here is more of it.", "A second sentence.", "A third one!"]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "none"}, 404, "model_not_found", "model"),
        ({"model": None}, 400, "invalid_type", "model"),
        ({"voice": "nobody"}, 400, "invalid_value", "voice"),
        ({"voice": {"id": "nobody"}}, 400, "invalid_value", "voice"),
        ({"input": ""}, 400, "empty_string", "input"),
        ({"input": "x" * 4097}, 400, "string_above_max_length", "input"),
        ({"response_format": "aiff"}, 400, "invalid_value", "response_format"),
        ({"speed": 0.1}, 400, "decimal_below_min_value", "speed"),
        ({"speed": 5}, 400, "decimal_above_max_value", "speed"),
        ({"stream_format": "other"}, 400, "invalid_value", "stream_format"),
    ],
)
def test_what_the_voice_cannot_do_is_refused_by_name(served, fields, status, code, param):
    assert refused(served.url, **fields) == (status, code, param)


def test_instructions_are_a_hint(served):
    assert posted(served.url, instructions="Whisper.", response_format="pcm")[0] == 200


def test_the_voices_own_name_is_a_model_and_voices_that_clients_know_are_taken(served):
    for voice in ("fable", "onyx", "nova", "alloy", "low", {"id": "low"}):
        assert posted(served.url, model="piper-en-us-joe-medium", voice=voice, response_format="pcm")[0] == 200


def test_a_failure_before_the_first_sound_is_an_error_over_http(served):
    status, _, body = posted(served.url, input="break at once")
    assert (status, json.loads(body)["error"]["message"]) == (500, "The voice broke.")


def test_an_answer_that_fails_midway_is_broken_off(served):
    body = json.dumps({"model": "tts-1", "input": "one two break", "voice": "alloy", "response_format": "pcm"}).encode()
    with connect(served.url) as connection:
        connection.sendall(request("POST", "/v1/audio/speech", body, content_type="application/json"))
        answer = rest_of(connection)
    assert answer.startswith(b"HTTP/1.1 200") and not answer.endswith(b"0\r\n\r\n")
    assert served.service.metrics.dropped["aborted"] == 1


def test_a_stream_of_events_says_what_failed_midway(served):
    status, _, body = posted(served.url, input="one two break", response_format="pcm", stream_format="sse")
    assert status == 200 and events_in(body)[-1]["error"]["message"] == "The voice broke."


def test_the_first_sound_leaves_while_the_rest_is_made_and_a_client_that_leaves_stops_the_voice(tmp_path):
    body = json.dumps({"model": "tts-1", "input": "endless", "voice": "alloy", "response_format": "wav"}).encode()
    with speaking(tmp_path) as served:
        with connect(served.url) as connection:
            connection.sendall(request("POST", "/v1/audio/speech", body, content_type="application/json"))
            until(connection, b"RIFF")
        mouth = served.synthesizer
    assert mouth.closed == 1


def test_a_server_that_stops_breaks_off_what_has_no_end(tmp_path):
    body = json.dumps({"model": "tts-1", "input": "endless", "voice": "alloy", "response_format": "pcm"}).encode()
    with speaking(tmp_path) as served:
        connection = connect(served.url)
        connection.sendall(request("POST", "/v1/audio/speech", body, content_type="application/json"))
        until(connection, b"audio/pcm")
        mouth = served.synthesizer
    with connection:
        assert not rest_of(connection).endswith(b"0\r\n\r\n")
    assert mouth.closed == 1


def test_without_a_voice_the_answer_says_how_to_get_one(base_url):
    status, _, body = posted(base_url)
    assert (status, json.loads(body)["error"]["code"]) == (501, "speech_not_available")


def test_sound_is_as_long_in_every_format(served):
    for kind in ("mp3", "opus", "wav"):
        _, _, body = posted(served.url, input="a b c d e f g h", response_format=kind)
        assert soundfile.info(io.BytesIO(body)).duration == pytest.approx(8 * WORD_MS / 1000, abs=0.12)
