"""OpenBMB's own SDK for MiniCPM-o, as it is, converses with antiphon."""

import asyncio
import base64
import contextlib
import json
import os
import urllib.request

import pytest
from openbmb_realtime import (
    AudioDelta,
    ErrorEvent,
    RealtimeClient,
    RealtimeConfig,
    RealtimeError,
    SessionClosed,
    SessionQueued,
    SessionReady,
    TextDelta,
    TurnCompleted,
    UsageEvent,
    WorkerAssigned,
)
from openbmb_realtime.types import SessionState
from sounds import JPEG, loudest, pieces, question, seconds, silence, speech

URL = os.environ["ANTIPHON_URL"]
MODEL = os.environ["ANTIPHON_MODEL"]
DEADLINE_S = 30
TOLD_S = 1
"""In which who waits is told of a new place in the queue; the SDK shows nothing of it before there is a session."""


def client(url=URL, key="none", **options):
    return RealtimeClient(api_key=key, base_url=url, **options)


class Listener:
    """Someone in a session: everything that the SDK says is kept."""

    def __init__(self, session):
        self.session, self.events, self.news = session, [], asyncio.Event()

    async def listen(self):
        async for event in self.session:
            self.events.append(event)
            self.news.set()

    async def until(self, looked):
        """What `looked` finds in the events, once it finds something."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := looked()):
                self.news.clear()
                await self.news.wait()
        return found

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def text(self):
        return "".join(event.text for event in self.of(TextDelta))

    @property
    def sound(self):
        return b"".join(event.audio for event in self.of(AudioDelta))

    async def say(self, sound, send=None):
        for piece in pieces(sound):
            await (send or self.session.send_audio)(piece)

    async def silent_until(self, looked, send=None):
        """Send silence, faster than it sounds, until `looked` finds something."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := looked()):
                await (send or self.session.send_audio)(silence(100))
                await asyncio.sleep(0.02)
        return found


@contextlib.asynccontextmanager
async def talking(mode="audio", url=URL, key="none", **options):
    """Someone in a session of that mode."""
    session = await getattr(client(url, key), mode).connect(**{"model": "parrot", **options})
    listener = Listener(session)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listener.listen())
        try:
            yield listener
        finally:
            await session.close()


async def until_queued(count):
    """Wait until so many wait for a place."""

    def queued():
        with urllib.request.urlopen(f"{URL.removesuffix('/v1')}/queue", timeout=DEADLINE_S) as told:
            return len(json.load(told)["items"])

    async with asyncio.timeout(DEADLINE_S):
        while await asyncio.to_thread(queued) != count:  # noqa: ASYNC110 - a server sets no event
            await asyncio.sleep(0.01)


def greeted(listener):
    """Whether the first turn was answered to its end: everything that listens completes a turn of the SDK's, and the answer one more."""
    turns = [at for at, event in enumerate(listener.events) if isinstance(event, TurnCompleted)]
    said = [at for at, event in enumerate(listener.events) if isinstance(event, TextDelta | AudioDelta)]
    return "morning" in listener.text and turns[-1] > said[-1]


def test_audio_session_from_hello_to_goodbye():
    async def scenario():
        async with talking(system_prompt="Be brief.") as listener:
            assert listener.session.state is SessionState.READY
            await listener.say(speech(400))
            await listener.silent_until(lambda: greeted(listener))
        return listener

    listener = asyncio.run(scenario())
    kinds = [type(event) for event in listener.events]
    assert kinds[:2] == [WorkerAssigned, SessionReady]
    assert listener.session.id.startswith("sess_") and listener.session.id == listener.of(SessionReady)[0].session_id
    assert listener.text == "You said: Good morning."
    assert 0.5 < seconds(listener.sound) < 10
    assert 0.01 < loudest(listener.sound) <= 1
    assert listener.events[-1] == SessionClosed("user_stop")
    assert (listener.session.state, listener.of(ErrorEvent)) == (SessionState.CLOSED, [])


def test_every_piece_that_is_listened_to_completes_a_turn():
    """The SDK passes over a `listen` that has no text, and then takes the model to be speaking for ever."""

    async def scenario():
        async with talking() as listener:
            await listener.say(silence(300))
            return await listener.until(lambda: len(listener.of(TurnCompleted)) >= 3), listener.session.state

    assert asyncio.run(scenario()) == (True, SessionState.LISTENING)


def test_usage_is_where_the_sdk_reads_it():
    async def scenario():
        async with talking() as listener:
            await listener.say(speech(400))
            await listener.silent_until(lambda: greeted(listener))
        return listener

    listener = asyncio.run(scenario())
    usage = listener.session.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0
    assert usage.audio_output_tokens > 0
    totals = [event.usage.total_tokens for event in listener.of(UsageEvent)]
    assert totals == sorted(totals)


def test_video_session():
    async def scenario():
        async with talking("video", max_slice_nums=2) as listener:

            async def send(piece):
                await listener.session.send_audio_video(piece, JPEG)

            await listener.say(speech(400), send)
            await listener.silent_until(lambda: greeted(listener), send)
            with pytest.raises(RealtimeError, match="video_audio_required"):
                await listener.session.send_video_frame(JPEG)
        return listener

    listener = asyncio.run(scenario())
    assert (listener.text, listener.of(ErrorEvent)) == ("You said: Good morning.", [])


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("path", ["", "/v1", "/"])
def test_every_way_to_write_the_address(scheme, path):
    async def scenario():
        async with talking(url=URL.replace("http", scheme, 1).removesuffix("/v1") + path) as listener:
            return listener.session.id

    assert asyncio.run(scenario())


def test_a_model_that_is_not_here_is_answered_by_one_that_is():
    async def scenario():
        async with talking(model="minicpm-o-4.5-realtime") as listener:
            return listener.session.id

    assert asyncio.run(scenario())


def test_every_option_is_taken():
    async def scenario():
        config = RealtimeConfig(length_penalty=1.1, max_tokens=64, temperature=0.5, max_kv_tokens=4096, tts_enabled=True, vision_hd=True)
        voice = base64.b64encode(speech(1000)).decode()
        async with talking(config=config, reference_audio_base64=voice, tts_reference_audio_base64=voice) as listener:
            return listener.session.state

    assert asyncio.run(scenario()) is SessionState.READY


def test_interrupting_ends_what_is_said():
    async def scenario():
        async with talking() as listener:
            await listener.say(speech(400))
            await listener.silent_until(lambda: greeted(listener))
            await listener.say(speech(400))
            await listener.silent_until(lambda: "Once upon" in listener.text)
            listener.session.interrupt()
            before = len(listener.of(TurnCompleted))
            await listener.session.send_audio(silence(100))
            await listener.until(lambda: len(listener.of(TurnCompleted)) > before)
            said = listener.text
            await listener.say(silence(500))
            await listener.until(lambda: len(listener.of(TurnCompleted)) > before + 5)
            assert listener.text == said
            await listener.say(speech(400))
            await listener.silent_until(lambda: "Stop" in listener.text)
        return listener

    assert asyncio.run(scenario()).of(ErrorEvent) == []


def test_a_pause_is_sound_that_does_not_come():
    async def scenario():
        async with talking() as listener:
            listener.session.pause()
            await listener.say(speech(400))
            assert (listener.session.state, len(listener.of(TurnCompleted))) == (SessionState.PAUSED, 0)
            listener.session.resume()
            await listener.say(speech(400))
            await listener.silent_until(lambda: greeted(listener))
            return listener.text

    assert asyncio.run(scenario()) == "You said: Good morning."


def test_closing_in_the_middle_of_an_answer_and_twice():
    async def scenario():
        async with talking() as listener:
            await listener.say(speech(400))
            await listener.silent_until(lambda: listener.sound)
            await listener.session.close("had_enough")
            await listener.session.close()
        return listener

    listener = asyncio.run(scenario())
    assert listener.events[-1] == SessionClosed("had_enough")
    assert listener.session.state is SessionState.CLOSED


def test_a_worker_that_dies_closes_the_session():
    async def scenario():
        async with talking(model="mortal") as listener:
            with contextlib.suppress(Exception):
                await listener.say(silence(400))
            await listener.until(lambda: listener.of(SessionClosed))
        return listener

    listener = asyncio.run(scenario())
    assert (listener.of(SessionClosed), listener.of(ErrorEvent)) == ([SessionClosed("backend_error")], [])


def test_a_queue_in_its_order():
    async def scenario():
        order, all_are_there = [], asyncio.Event()

        async def come(who):
            async with talking(model="one-slot") as listener:
                order.append((who, listener))
                await all_are_there.wait()
                await asyncio.sleep(TOLD_S)

        async def all_come():
            async with talking(model="one-slot") as listener:
                order.append(("first", listener))
                for count, who in enumerate(("second", "third"), start=1):
                    tasks.create_task(come(who))
                    await until_queued(count)
                all_are_there.set()

        async with asyncio.TaskGroup() as tasks:
            await all_come()
        return order

    order = asyncio.run(scenario())
    assert [who for who, _ in order] == ["first", "second", "third"]
    first, second, third = (listener.of(SessionQueued) for _, listener in order)
    assert (first, [event.position for event in third]) == ([], [2, 1])
    assert {event.position for event in second} == {1}
    assert second[0].queue_length == 1 and third[0].queue_length == 2


def test_leaving_the_queue_lets_the_next_one_pass():
    async def scenario():
        async with asyncio.TaskGroup() as tasks:
            async with talking(model="one-slot"):
                leaving = tasks.create_task(client().audio.connect(model="one-slot"))
                await until_queued(1)
                staying = tasks.create_task(client().audio.connect(model="one-slot"))
                await until_queued(2)
                leaving.cancel()
                await asyncio.wait([leaving])
                await until_queued(1)
                await asyncio.sleep(TOLD_S)
            listener = Listener(await asyncio.wait_for(staying, DEADLINE_S))
            await listener.session.close()
            await listener.listen()
        return listener

    assert [event.position for event in asyncio.run(scenario()).of(SessionQueued)] == [2, 1]


def test_a_full_queue_refuses():
    async def scenario():
        async with asyncio.TaskGroup() as tasks, talking(model="one-slot"):
            waiting = [tasks.create_task(client().audio.connect(model="one-slot")) for _ in range(4)]
            await until_queued(4)
            with pytest.raises(RealtimeError) as refusal:
                await client().audio.connect(model="one-slot")
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        return refusal.value

    assert asyncio.run(scenario()).code == "queue_full"


def test_waiting_longer_than_the_client_likes():
    """The SDK's patience covers the queue; it says goodbye, and waits for the answer to that."""

    async def scenario():
        async with talking(model="one-slot"):
            began = asyncio.get_running_loop().time()
            with pytest.raises(RealtimeError) as refusal:
                await client(connect_timeout=0.3).audio.connect(model="one-slot")
            took_s = asyncio.get_running_loop().time() - began
        async with talking(model="one-slot"):
            return refusal.value.code, took_s < 5

    assert asyncio.run(scenario()) == ("connect_timeout", True)


@pytest.mark.parametrize("farewell", ["close", "abort"])
def test_the_next_session_gets_the_place_however_the_last_one_ended(farewell):
    async def scenario():
        for _ in range(4):
            session = await client(connect_timeout=DEADLINE_S).audio.connect(model="one-slot")
            await session.send_audio(speech(100))
            if farewell == "close":
                await session.close()
            else:
                session._socket.transport.abort()

    asyncio.run(scenario())


def test_a_wrong_key_is_refused_before_anything_else(strict):
    async def scenario(key):
        async with talking(url=strict.url, key=key) as listener:
            return listener.session.id

    assert asyncio.run(scenario(strict.key))
    with pytest.raises(RealtimeError) as refusal:
        asyncio.run(scenario("wrong"))
    assert refusal.value.code == "socket_create_failed"
    assert refusal.value.cause.response.status_code == 401


def test_a_session_ends_when_its_time_is_up(strict):
    async def scenario():
        async with talking(url=strict.url, key=strict.key) as listener:
            await listener.until(lambda: listener.of(SessionClosed))
        return listener

    listener = asyncio.run(scenario())
    assert (listener.of(SessionClosed), listener.of(ErrorEvent)) == ([SessionClosed("timeout")], [])


@pytest.mark.skipif("ANTIPHON_QUESTION" not in os.environ, reason="this server can't listen and speak")
def test_a_question_aloud_to_the_embedded_model():
    async def scenario():
        async with talking(model=MODEL, system_prompt="Answer with one short sentence.") as listener:
            for piece in [*pieces(question(), 200), *pieces(silence(1000), 200)]:
                await listener.session.send_audio(piece)
                await asyncio.sleep(0.2)
            await listener.silent_until(lambda: listener.text and listener.sound)
            await listener.until(lambda: seconds(listener.sound) > 0.3)
        return listener

    listener = asyncio.run(scenario())
    assert listener.text and loudest(listener.sound) > 0.01
    assert listener.of(ErrorEvent) == []
