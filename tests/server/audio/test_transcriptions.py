"""Transcriptions over a real socket, with the official client and plain HTTP."""

import gzip
import json
import urllib.error
import urllib.request

import openai
import pytest

from antiphon.audio import wav_file
from support.server.raw_http import connect, error_of, request, rest_of, statuses
from support.server.speech_server import ScriptedTranscriber, speaking, tone

RATE_HZ = 16_000


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server whose transcriber provides no times."""
    with speaking(tmp_path_factory.mktemp("home")) as served:
        yield served


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A server whose transcriber provides times."""
    with speaking(tmp_path_factory.mktemp("home"), transcriber=ScriptedTranscriber(has_times=True)) as served:
        yield served


def client_of(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def beep(seconds, rate_hz=RATE_HZ):
    return wav_file(tone(seconds * 1000, rate_hz), rate_hz)


def transcribed(served, file=None, **fields):
    with client_of(served) as client:
        return client.audio.transcriptions.create(model="whisper-1", file=("x.wav", file or beep(2)), **fields)


def form(fields, boundary="b0undary"):
    """A form's body, of names and values; a value of bytes is a file."""
    body = b""
    for name, value in fields:
        more = '; filename="x"' if isinstance(value, bytes) else ""
        content = value if isinstance(value, bytes) else value.encode()
        body += f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode()


def posted(url, body, content_type="multipart/form-data; boundary=b0undary", **headers):
    asked = urllib.request.Request(f"{url}/v1/audio/transcriptions", body, {"content-type": content_type, **headers})
    try:
        with urllib.request.urlopen(asked) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def refused(served, *fields, file=None):
    """The status, code and param with which a form is refused."""
    status, error = posted(served.url, form([("model", "whisper-1"), ("file", beep(1) if file is None else file), *fields]))
    return status, error["code"], error["param"]


def test_a_recording_is_written_down(served):
    said = transcribed(served)
    assert said.text == "[2.0 s]"
    assert (said.usage.type, said.usage.seconds) == ("duration", 2)


def test_text_and_subtitles_come_as_text(served):
    assert transcribed(served, response_format="text") == "[2.0 s]\n"
    assert transcribed(served, response_format="srt") == "1\n00:00:00,000 --> 00:00:02,000\n[2.0 s]\n\n"
    assert transcribed(served, response_format="vtt") == "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\n[2.0 s]\n\n"


def test_times_of_segments_and_words_are_told_where_the_ear_knows_them(timed):
    told = transcribed(timed, response_format="verbose_json", timestamp_granularities=["word", "segment"], language="fr")
    assert (told.duration, told.language, told.text) == (2.0, "french", "[2.0 s]")
    assert [(each.start, each.end, each.text) for each in told.segments] == [(0.5, 2.0, "[2.0 s]")]
    assert [(each.start, each.end, each.word) for each in told.words] == [(0.5, 1.0, "[2.0 s]")]
    assert transcribed(timed, response_format="verbose_json").words is None


def test_times_of_words_are_refused_where_the_ear_does_not_know_them(served):
    fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")]
    assert refused(served, *fields) == (400, "unsupported_parameter", "timestamp_granularities")


def test_a_long_recording_is_written_down_stretch_by_stretch_and_its_times_go_on(timed):
    told = transcribed(timed, beep(70), response_format="verbose_json")
    assert told.duration == 70.0
    assert len(told.segments) >= 3
    assert told.text == " ".join(each.text for each in told.segments)
    assert [each.end for each in told.segments[:-1]] == [each.start - 0.5 for each in told.segments[1:]]
    assert sum(float(each.text[1:-3]) for each in told.segments) == pytest.approx(70, abs=0.3)


def test_with_stream_each_stretch_is_told_and_then_all_of_them(served):
    with client_of(served) as client:
        stream = client.audio.transcriptions.create(
            model="gpt-4o-transcribe", file=("x.wav", beep(50)), response_format="json", stream=True
        )
        events = list(stream)
    *deltas, done = events
    assert {each.type for each in deltas} == {"transcript.text.delta"} and len(deltas) >= 3
    assert done.type == "transcript.text.done"
    assert "".join(each.delta for each in deltas) == done.text


def test_wishes_reach_the_ear(timed):
    transcribed(timed, language="en", prompt="Emma")
    assert (timed.transcriber.wishes[-1].languages, timed.transcriber.wishes[-1].prompt) == (("en",), "Emma")
    transcribed(timed, languages=["en", "fr"], keywords=["Woodhouse", "Highbury"])
    assert (timed.transcriber.wishes[-1].languages, timed.transcriber.wishes[-1].keywords) == (("en", "fr"), ("Woodhouse", "Highbury"))


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ([("language", "xx")], "language", "unsupported_value"),
        ([("temperature", "7")], "temperature", "decimal_above_max_value"),
        ([("include[]", "logprobs")], "include", "unsupported_parameter"),
        ([("include[]", "other")], "include[0]", "invalid_value"),
        ([("response_format", "diarized_json")], "response_format", "invalid_value"),
        ([("response_format", "xml")], "response_format", "invalid_value"),
        ([("response_format", "srt"), ("stream", "true")], "response_format", "unsupported_value"),
        ([("timestamp_granularities[]", "segment")], "timestamp_granularities", "invalid_value"),
        ([("chunking_strategy", "by_word")], "chunking_strategy", "invalid_value"),
        ([("chunking_strategy", '{"type": "by_word"}')], "chunking_strategy", "invalid_value"),
        ([("chunking_strategy", "[")], "chunking_strategy", "invalid_value"),
        ([("known_speaker_names[]", "Emma")], "known_speaker_names", "unsupported_parameter"),
        ([("language", "en"), ("languages[]", "fr")], "languages", "mutually_exclusive_parameters"),
    ],
)
def test_what_the_ear_cannot_do_is_refused_by_name(served, fields, param, code):
    assert refused(served, *fields) == (400, code, param)


@pytest.mark.parametrize(
    "hint",
    [
        {"prompt": "Emma"},
        {"keywords": ["Woodhouse"]},
        {"temperature": 0.4},
        {"chunking_strategy": {"type": "server_vad", "silence_duration_ms": 200}},
    ],
    ids=str,
)
def test_hints_that_the_ear_can_not_act_on_are_taken(served, hint):
    assert transcribed(served, **hint).text == "[2.0 s]"


def test_how_the_recording_is_cut_may_be_said_in_every_form(served):
    for strategy in ("auto", "server_vad", '{"type": "server_vad", "threshold": 0.5}'):
        status, said = posted(served.url, form([("model", "whisper-1"), ("file", beep(1)), ("chunking_strategy", strategy)]))
        assert (status, json.loads(said)["text"]) == (200, "[1.0 s]")


def test_defaults_may_be_said(served):
    assert transcribed(served, temperature=0, chunking_strategy="auto", response_format="json", stream=False).text == "[2.0 s]"


EMPTY = [("language", ""), ("temperature", ""), ("response_format", ""), ("stream", "")]


@pytest.mark.parametrize("fields", [EMPTY, [("stream", "False")]])
def test_what_a_form_leaves_empty_or_writes_as_python_does_is_understood(served, fields):
    status, answer = posted(served.url, form([("model", "whisper-1"), ("file", beep(1)), *fields]))
    assert (status, json.loads(answer)["text"]) == (200, "[1.0 s]")


def test_an_unknown_model_is_not_found_and_told_which_there_are(served):
    status, error = posted(served.url, form([("model", "none"), ("file", beep(1))]))
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "moonshine-tiny-en" in error["message"] and "whisper-1" in error["message"]


def test_the_ears_own_name_is_one(served):
    with client_of(served) as client:
        assert client.audio.transcriptions.create(model="moonshine-tiny-en", file=("x", beep(1))).text == "[1.0 s]"


def test_silence_is_nothing_said(served):
    assert transcribed(served, wav_file(bytes(2 * RATE_HZ), RATE_HZ)).text == ""


@pytest.mark.parametrize(
    "file",
    [b"", b"hello", b"RIFF\0\0\0\0WAVE", b"fLaC" + bytes(60), b"OggS" + bytes(60), b"ID3" + bytes(60), b"\xff\xfb" + bytes(60)],
)
def test_what_is_no_recording_is_refused(served, file):
    status, code, param = refused(served, file=file)
    assert (status, code, param) == (400, "invalid_value", "file")


def test_a_recording_must_have_a_tenth_of_a_second(served):
    assert refused(served, file=beep(0.05)) == (400, "audio_too_short", "file")


def test_a_recording_that_says_it_is_slow_beyond_sense_is_refused(served):
    assert refused(served, file=wav_file(bytes(4000), 1)) == (400, "invalid_value", "file")


def test_files_of_more_than_25_mib_are_refused(served):
    for size in ((25 << 20) + 1, 40 << 20):
        status, error = posted(served.url, form([("model", "whisper-1"), ("file", bytes(size))]))
        assert (status, error["code"]) == (413, "request_too_large")


def test_a_body_that_is_no_form_is_refused(served):
    assert posted(served.url, b"{}", "application/json")[1]["code"] == "unsupported_content_type"
    for body, content_type in ((b"hello", "multipart/form-data; boundary=b"), (form([]), "multipart/form-data")):
        status, error = posted(served.url, body, content_type)
        assert status == 400 and "form" in error["message"]


def test_a_compressed_form_is_refused_by_name(served):
    body = gzip.compress(form([("model", "whisper-1"), ("file", beep(2))]))
    status, error = posted(served.url, body, **{"content-encoding": "gzip"})
    assert (status, error["code"]) == (415, "unsupported_content_encoding")


def test_a_form_without_a_file_or_a_model_is_refused(served):
    for fields, missing in (([("model", "whisper-1")], "file"), ([("file", beep(1))], "model"), ([("file", "text")], "file")):
        status, error = posted(served.url, form(fields))
        assert (status, error["code"], error["param"]) == (400, "missing_required_parameter", missing)


def test_a_form_of_too_many_fields_is_refused(served):
    status, error = posted(served.url, form([("x", "y")] * 200))
    assert status == 400 and "Too many fields" in error["message"]


def test_a_client_that_leaves_stops_the_ear(tmp_path):
    ear = ScriptedTranscriber()
    ear.is_slow = True
    with speaking(tmp_path, transcriber=ear, **{"speech.warm_up": False}) as served:
        body = form([("model", "whisper-1"), ("file", beep(1))])
        with connect(served.url) as connection:
            connection.sendall(request("POST", "/v1/audio/transcriptions", body, content_type="multipart/form-data; boundary=b0undary"))
            assert ear.waits.wait(20)
    assert ear.stopped == 1


def test_a_server_that_stops_says_so_to_whoever_waits(tmp_path):
    ear = ScriptedTranscriber()
    ear.is_slow = True
    with speaking(tmp_path, transcriber=ear, **{"speech.warm_up": False}) as served:
        body = form([("model", "whisper-1"), ("file", beep(1))])
        connection = connect(served.url)
        connection.sendall(request("POST", "/v1/audio/transcriptions", body, content_type="multipart/form-data; boundary=b0undary"))
        assert ear.waits.wait(20)
    with connection:
        answer = rest_of(connection)
    assert statuses(answer) == [503] and error_of(answer)["code"] == "server_shutting_down"


def test_without_ears_the_answer_says_how_to_get_them(base_url):
    status, error = posted(base_url, form([("model", "whisper-1"), ("file", beep(1))]))
    assert (status, error["code"]) == (501, "speech_not_available")
    assert "antiphon models pull" in error["message"]
