"""A voice that is a server."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from antiphon.audio import wav_file
from antiphon.errors import ApiError, ClientError
from antiphon.speech.tts.openai import OpenAISynthesizer, SpeechServer
from support.speech.running import run, started
from support.speech.synthesizers import collect_audio

PCM = b"\1\0" * 24_000


@contextlib.asynccontextmanager
async def speaking(answer, **more):
    """A synthesizer in front of a server with this answer; the list collects the requests."""
    asked = []

    async def respond(request):
        asked.append((await request.json(), request.headers.get("authorization")))
        return await answer(request)

    app = web.Application()
    app.router.add_post("/v1/audio/speech", respond)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server = SpeechServer(base_url=f"http://127.0.0.1:{port}/v1", model="tts-1", voices=("alloy", "ash"), **more)
    try:
        async with started(OpenAISynthesizer(server)) as mouth:
            yield mouth, asked
    finally:
        await runner.cleanup()


def sound(body=PCM, kind="audio/pcm", status=200, headers=None):
    async def answer(_request):
        return web.Response(body=body, status=status, content_type=kind, headers=headers)

    return answer


def test_what_it_says_is_passed_on_with_its_words():
    async def scenario():
        async with speaking(sound(), api_key="sesame", aliases={"marin": "ash"}) as (mouth, asked):
            pieces = await collect_audio(mouth, "Hello there, you.", "marin", 1.5)
            assert "".join(piece.text for piece in pieces) == "Hello there, you."
            assert b"".join(piece.pcm for piece in pieces) == PCM
            assert [piece.text for piece in pieces if piece.text] == ["Hello ", "there, ", "you."]
            body = {"model": "tts-1", "input": "Hello there, you.", "voice": "ash", "response_format": "pcm", "speed": 1.5}
            assert asked == [(body, "Bearer sesame")]

    run(scenario())


def test_sound_comes_while_the_server_still_speaks():
    async def scenario():
        released = asyncio.Event()

        async def answer(request):
            response = web.StreamResponse(headers={"content-type": "audio/pcm"})
            await response.prepare(request)
            await response.write(PCM[:2401])  # half a sample more
            await released.wait()
            await response.write(PCM[2401:])
            return response

        async with speaking(answer) as (mouth, _):
            saying = mouth.synthesize("Hello there.")
            first = await anext(saying)
            assert (first.text, len(first.pcm)) == ("Hello ", 2400)
            released.set()
            rest = [piece async for piece in saying]
            assert first.pcm + b"".join(piece.pcm for piece in rest) == PCM

    run(scenario())


def test_words_that_no_sound_is_left_for_are_told_all_the_same():
    async def scenario():
        async with speaking(sound(b"\1\0")) as (mouth, _):
            assert [piece.text for piece in await collect_audio(mouth, "One two three.")] == ["One ", "two three."]

    run(scenario())


def test_a_wav_file_of_another_rate_is_made_ours():
    async def scenario():
        async with speaking(sound(wav_file(b"\1\0" * 8_000, 8_000), "audio/wav"), format="wav") as (mouth, _):
            assert sum(len(piece.pcm) for piece in await collect_audio(mouth, "One.")) == len(PCM)

    run(scenario())


def test_a_wav_file_is_read_also_where_samples_were_asked_for_however_it_comes():
    async def answer(request):
        response = web.StreamResponse(headers={"content-type": "audio/wav"})
        await response.prepare(request)
        for byte in wav_file(b"\1\0" * 8_000, 8_000)[:64]:
            await response.write(bytes([byte]))
            await asyncio.sleep(0)
        await response.write(wav_file(b"\1\0" * 8_000, 8_000)[64:])
        return response

    async def scenario():
        async with speaking(answer) as (mouth, _):
            assert sum(len(piece.pcm) for piece in await collect_audio(mouth, "One.")) == len(PCM)

    run(scenario())


@pytest.mark.parametrize("body", [b"ID3\4" + bytes(99), b"\xff\xfb\x90\xc4" + bytes(99), b"OggS" + bytes(99), b"fLaC" + bytes(99)])
def test_files_are_not_played_as_samples(body):
    async def scenario():
        async with speaking(sound(body, "audio/mpeg")) as (mouth, _):
            with pytest.raises(ApiError, match="not 'pcm' as was asked for"):
                await collect_audio(mouth, "One.")

    run(scenario())


@pytest.mark.parametrize(("body", "kind"), [(b"\xff\xfb" * 100, "audio/pcm"), (b"\1\0" * 100, "audio/mpeg"), (b"\1\0", "audio/pcm")])
def test_samples_are_samples_whatever_they_are_called_or_look_like(body, kind):
    async def scenario():
        async with speaking(sound(body, kind)) as (mouth, _):
            assert b"".join(piece.pcm for piece in await collect_audio(mouth, "One.")) == body

    run(scenario())


def test_only_voices_that_it_is_known_to_have_are_asked_for():
    async def scenario():
        async with speaking(sound()) as (mouth, asked):
            with pytest.raises(ClientError, match="'alloy' and 'ash'"):
                await collect_audio(mouth, "One.", "marin")
            assert await collect_audio(mouth, "") == []
            assert asked == []

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (sound(b'{"error": {"message": "no such key"}}', "application/json", 401), 502, "credentials"),
        (sound(b'{"detail": "too many"}', "application/json", 429, {"retry-after": "7"}), 429, "too many"),
        (sound(b'{"error": "no voice"}', "application/json", 400), 502, "no voice"),
        (sound(b'{"detail": "no room in /srv"}', "application/json", 500), 502, r"failed \(500\)\.$"),
        (sound(b"<html>", "text/html"), 502, "instead of sound"),
        (sound(b"", "text/plain", 503), 503, "no more requests"),
        (sound(b"", "text/plain", 504), 504, "ran out of time"),
    ],
)
def test_what_it_answers_instead_is_told(answer, status, said):
    async def scenario():
        async with speaking(answer) as (mouth, _):
            with pytest.raises(ApiError, match=said) as fault:
                await collect_audio(mouth, "One.")
            assert fault.value.status == status

    run(scenario())


def test_a_file_that_is_none_is_told():
    async def scenario():
        async with speaking(sound(b"ID3"), format="wav") as (mouth, _):
            with pytest.raises(ApiError, match="can't be played"):
                await collect_audio(mouth, "One.")

    run(scenario())


def test_a_server_that_breaks_off_is_told():
    async def answer(request):
        response = web.StreamResponse(headers={"content-type": "audio/pcm", "content-length": "9999"})
        await response.prepare(request)
        await response.write(PCM[:100])
        request.transport.close()
        return response

    async def scenario():
        async with speaking(answer) as (mouth, _):
            with pytest.raises(ApiError, match="closed the connection before its answer was complete"):
                await collect_audio(mouth, "One.")

    run(scenario())


def test_a_server_that_is_not_there_or_says_nothing_is_told():
    async def answer(_request):
        await asyncio.Event().wait()

    async def scenario():
        async with speaking(answer, first_byte_timeout_s=0.2) as (mouth, _):
            with pytest.raises(ApiError, match="in time") as fault:
                await collect_audio(mouth, "One.")
            assert fault.value.status == 504
        async with started(OpenAISynthesizer(SpeechServer(base_url="http://127.0.0.1:1/v1", model="x", voices=("a",)))) as mouth:
            with pytest.raises(ApiError, match="can't be reached") as fault:
                await collect_audio(mouth, "One.")
            assert fault.value.message == "The speech server can't be reached: Connection refused."  # and not where it is

    run(scenario())


def test_a_server_whose_voices_nobody_named_is_refused():
    with pytest.raises(ApiError, match="voices"):
        OpenAISynthesizer(SpeechServer(base_url="http://127.0.0.1/v1", model="x", voices=()))
