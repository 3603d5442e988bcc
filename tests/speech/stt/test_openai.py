"""Transcription by a server."""

import asyncio
import contextlib
import io
import json
import wave

import pytest
from aiohttp import web

from antiphon.engine_api.options import Transcription
from antiphon.errors import ApiError, ClientError
from antiphon.speech.base import TimedText, Transcript
from antiphon.speech.stt.openai import OpenAITranscriber, TranscriptionServer
from support.speech.running import run, started
from support.speech.transcribers import OPTIONS, silence

VERBOSE = {
    "task": "transcribe",
    "language": "en",
    "duration": 1.1,
    "text": " Ten of clubs.",
    "segments": [{"id": 0, "text": " Ten of clubs.", "start": 0.0, "end": 1, "avg_logprob": -0.2, "no_speech_prob": None}],
    "words": [{"word": "Ten", "start": 0.1, "end": 0.4}],
    "usage": {"type": "duration", "seconds": 2},
}


class Asked:
    """What a server was asked."""

    def __init__(self, request, form):
        self.headers = request.headers
        self.fields = sorted((name, value) for name, value in form.items() if name != "file")
        with form["file"].file as uploaded, wave.open(io.BytesIO(uploaded.read())) as file:
            self.rate_hz = file.getframerate()
            self.pcm = file.readframes(file.getnframes())


@contextlib.asynccontextmanager
async def hearing(answer, **more):
    """A transcriber in front of a server with this answer; the list collects the requests."""
    asked = []

    async def respond(request):
        asked.append(Asked(request, await request.post()))
        return await answer(asked[-1])

    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", respond)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = TranscriptionServer(**{"base_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "model": "whisper-1"} | more)
    try:
        async with started(OpenAITranscriber(server)) as ear:
            yield ear, asked
    finally:
        await runner.cleanup()


def says(body, status=200, headers=None):
    async def answer(_asked):
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status, headers=headers)

    return answer


def test_the_sound_is_sent_as_a_wav_file_and_the_words_come_with_their_times(recording):
    async def scenario():
        pcm = recording("cards_001")
        async with hearing(says(VERBOSE), api_key="sesame", headers={"x-team": "voice"}) as (ear, asked):
            transcript = await ear.transcribe(pcm, Transcription(word_times=True))
        assert transcript == Transcript(
            text="Ten of clubs.",
            segments=(TimedText("Ten of clubs.", 0, 1),),
            words=(TimedText("Ten", 0.1, 0.4),),
            language="en",
        )
        (request,) = asked
        assert (request.pcm, request.rate_hz) == (pcm, 16_000)
        assert (request.headers["authorization"], request.headers["x-team"]) == ("Bearer sesame", "voice")
        granularities = [("timestamp_granularities[]", "segment"), ("timestamp_granularities[]", "word")]
        assert request.fields == [("model", "whisper-1"), ("response_format", "verbose_json"), *granularities]

    run(scenario())


@pytest.mark.parametrize(
    ("wish", "takes_lists", "fields"),
    [
        (Transcription(languages=("de-AT",), prompt="Karten."), False, [("language", "de"), ("prompt", "Karten.")]),
        (Transcription(languages=("de", "en")), False, []),
        (Transcription(keywords=("clubs", "hearts")), False, [("prompt", "clubs, hearts")]),
        (Transcription(keywords=("clubs", "hearts"), prompt="Cards."), False, [("prompt", "Cards. clubs, hearts")]),
        (
            Transcription(languages=("de", "en"), keywords=("clubs",)),
            True,
            [("keywords[]", "clubs"), ("languages[]", "de"), ("languages[]", "en")],
        ),
    ],
)
def test_a_wish_is_passed_on_as_the_server_takes_it(wish, takes_lists, fields, recording):
    async def scenario():
        async with hearing(says({"text": "Ten."}), has_times=False, takes_lists=takes_lists) as (ear, asked):
            ear.check_options(wish)
            await ear.transcribe(recording("cards_001"), wish)
        assert [field for field in asked[0].fields if field[0] not in ("model", "response_format")] == fields

    run(scenario())


def test_a_server_that_tells_no_times_is_asked_for_them_once(recording):
    async def picky(asked):
        if ("response_format", "verbose_json") in asked.fields:
            return await says({"error": {"message": "response_format 'verbose_json' is not compatible with model."}}, 400)(asked)
        return await says({"text": "Ten.", "usage": {"type": "tokens", "input_tokens": 9, "output_tokens": 3}})(asked)

    async def scenario():
        async with hearing(picky) as (ear, asked):
            for _ in range(2):
                assert await ear.transcribe(recording("cards_001"), OPTIONS) == Transcript(text="Ten.", tokens=3)
            assert not ear.has_times
            with pytest.raises(ClientError):
                ear.check_options(Transcription(word_times=True))
        assert [dict(each.fields)["response_format"] for each in asked] == ["verbose_json", "json", "json"]

    run(scenario())


@pytest.mark.parametrize(
    ("status", "body", "kind", "expected"),
    [
        (401, {"error": {"message": "Incorrect API key: sk-secret"}}, ApiError, (502, "upstream_credentials")),
        (400, {"error": {"message": "Audio is too short."}}, ClientError, (400, "invalid_value")),
        (429, {"error": "slow down"}, ApiError, (429, "rate_limit_exceeded")),
        (503, {"detail": "loading /srv/secret"}, ApiError, (503, "server_is_overloaded")),
        (504, "<html>", ApiError, (504, "upstream_timeout")),
        (500, {"object": "error", "message": "No room in /srv/secret."}, ApiError, (502, "server_error")),
        (302, "", ApiError, (502, "server_error")),
        (200, "<html> secret", ApiError, (502, "server_error")),
        (200, {"segments": []}, ApiError, (502, "server_error")),
        (200, "[" * 100_000, ApiError, (502, "server_error")),
    ],
)
def test_what_goes_wrong_there_is_told_as_whose_fault_it_is(status, body, kind, expected, recording):
    async def scenario():
        headers = {"retry-after": "7"} | ({"location": "http://127.0.0.1:1/"} if status == 302 else {})
        async with hearing(says(body, status, headers)) as (ear, asked):
            with pytest.raises(kind) as told:
                await ear.transcribe(recording("cards_001"), OPTIONS)
        assert (told.value.status, told.value.code) == expected
        assert "secret" not in told.value.message
        assert told.value.retry_after_s == (7 if status in (429, 503) else None)
        assert len(asked) == 1

    run(scenario())


def test_a_server_that_is_not_there_says_so(recording):
    async def scenario():
        async with hearing(says({"text": ""}), base_url="http://127.0.0.1:1/v1") as (ear, _):
            with pytest.raises(ApiError) as told:
                await ear.transcribe(recording("cards_001"), OPTIONS)
        assert told.value.code == "upstream_unreachable"

    run(scenario())


def test_a_server_that_says_nothing_is_given_up_on(recording):
    async def never(_asked):
        await asyncio.Event().wait()

    async def scenario():
        async with hearing(never, response_timeout_s=0.05) as (ear, _):
            with pytest.raises(ApiError) as told:
                await ear.transcribe(recording("cards_001"), OPTIONS)
        assert told.value.code == "upstream_timeout"

    run(scenario())


def test_a_connection_that_was_closed_meanwhile_is_made_again(recording):
    async def scenario():
        times = []

        async def hang_up(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(size)
            times.append(1)
            if len(times) > 1:
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"text":"Ten."}')
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with started(OpenAITranscriber(TranscriptionServer(base_url=f"http://127.0.0.1:{port}/v1", model="m"))) as ear:
            assert (await ear.transcribe(recording("cards_001"), OPTIONS)).text == "Ten."
        server.close()
        await server.wait_closed()
        assert len(times) == 2

    run(scenario())


def test_more_than_can_wait_is_refused_and_cancelling_hangs_up(recording):
    async def scenario():
        gone, came = asyncio.Event(), asyncio.Event()

        async def hold(_asked):
            came.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()

        async with hearing(hold, concurrency=1, max_pending=1) as (ear, asked), asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(ear.transcribe(recording("cards_001"), OPTIONS)) for _ in range(2)]
            assert ear.is_free
            await came.wait()
            assert not ear.is_free
            with pytest.raises(ApiError) as refused:
                await ear.transcribe(recording("cards_001"), OPTIONS)
            assert (refused.value.status, len(asked)) == (503, 1)
            for task in reversed(both):
                task.cancel()
            await gone.wait()

    run(scenario())


def test_nothing_is_asked_about_silence():
    async def scenario():
        async with hearing(says({"text": "Thank you."})) as (ear, asked):
            assert await ear.transcribe(silence(2), OPTIONS) == Transcript(text="")
        assert asked == []

    run(scenario())


def test_what_the_server_made_up_is_left_out(recording):
    async def scenario():
        async with hearing(says(VERBOSE | {"text": "Subtitles by the Amara.org community"})) as (ear, _):
            assert await ear.transcribe(recording("cards_001"), OPTIONS) == Transcript(text="")

    run(scenario())


@pytest.mark.parametrize(
    ("wish", "param"),
    [(Transcription(languages=("fr",)), "language"), (Transcription(logprobs=True), "logprobs")],
)
def test_what_the_server_cannot_do_is_refused_by_name(wish, param):
    async def scenario():
        async with hearing(says({"text": ""}), languages=("en", "de")) as (ear, _):
            with pytest.raises(ClientError) as refused:
                ear.check_options(wish)
        assert refused.value.param == param

    run(scenario())
