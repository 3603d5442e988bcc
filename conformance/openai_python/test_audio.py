"""openai-python's audio: speech synthesis and transcription; skipped if the server can't listen and speak."""

import os
import re

import openai
import pytest
from openai.types.audio import Transcription, TranscriptionVerbose

SENTENCE = "The quick brown fox jumps over the lazy dog."
KINDS = ["mp3"] if os.environ.get("ANTIPHON_SHORT") else ["mp3", "opus", "flac", "wav"]


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def is_the_sentence(text):
    """Whether that is what was said, but for a word or two that were misheard: no two readings are the same."""
    return len(set(words(SENTENCE)) - set(words(text))) <= 2 and len(words(text)) <= len(words(SENTENCE)) + 3


@pytest.fixture(scope="module")
def client():
    with openai.OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0) as made:
        try:
            made.audio.speech.create(model="tts-1", voice="alloy", input="Ready.", response_format="pcm")
        except openai.InternalServerError as error:
            if error.status_code == 501:
                pytest.skip(str(error))
            raise
        yield made


@pytest.fixture(scope="module")
def spoken(client):
    """The sentence as a file."""
    return client.audio.speech.create(model="tts-1", voice="alloy", input=SENTENCE, response_format="wav").content


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_aloud_is_written_down(client, kind):
    sound = client.audio.speech.create(model="gpt-4o-mini-tts", voice="alloy", input=SENTENCE, response_format=kind).content
    said = client.audio.transcriptions.create(model="whisper-1", file=(f"speech.{kind}", sound))
    assert isinstance(said, Transcription) and is_the_sentence(said.text), said


def test_sound_is_streamed(client):
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=f"{SENTENCE} {SENTENCE}", response_format="pcm"
    ) as reply:
        pieces = list(reply.iter_bytes())
    assert len(pieces) > 1 and sum(map(len, pieces)) > 24_000 * 2 * 3


def test_a_transcript_is_streamed(client, spoken):
    stream = client.audio.transcriptions.create(model="gpt-4o-transcribe", file=("speech.wav", spoken), response_format="json", stream=True)
    *deltas, done = stream
    assert {event.type for event in deltas} == {"transcript.text.delta"} and done.type == "transcript.text.done"
    assert words(done.text) == words("".join(event.delta for event in deltas)) and is_the_sentence(done.text)


def test_text_subtitles_and_times(client, spoken):
    def told(kind):
        return client.audio.transcriptions.create(model="whisper-1", file=("speech.wav", spoken), response_format=kind)

    assert is_the_sentence(told("text"))
    assert "-->" in told("srt") and told("vtt").startswith("WEBVTT")
    verbose = told("verbose_json")
    assert isinstance(verbose, TranscriptionVerbose)
    TranscriptionVerbose.model_validate(verbose.model_dump(), strict=True)
    assert verbose.segments[-1].end <= verbose.duration


def test_what_there_is_not_is_refused_by_name(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.audio.speech.create(model="none", voice="alloy", input="x")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="tts-1", voice="nobody", input="x")
    assert caught.value.param == "voice" and "alloy" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model="whisper-1", file=("x.wav", b"no recording"))
    assert caught.value.param == "file"
