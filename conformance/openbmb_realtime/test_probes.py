"""The protocol of MiniCPM-o as it is described, spoken by a plain WebSocket client in all three modes."""

import asyncio
import base64
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from probes import Probe, encoded, probing, sound_of, text_of, user
from sounds import JPEG, loudest, pieces, question, seconds, silence, speech
from websockets.exceptions import ConnectionClosed

URL = os.environ["ANTIPHON_URL"]
MODEL = os.environ["ANTIPHON_MODEL"]
NOT_A_NUMBER = struct.pack("<f", float("nan")) * 160


def kinds(events):
    """Their types, and the kinds of deltas; those that repeat once."""
    told = [event.get("kind") or event["type"] for event in events]
    return [kind for at, kind in enumerate(told) if not at or told[at - 1] != kind]


def in_session(scenario, mode, model="parrot", payload=None, url=URL, **query):
    """What `scenario` makes of a probe in a session, and the probe."""

    async def run():
        async with probing(url, mode, model=model, **query) as socket:
            probe = Probe(socket)
            created = await probe.begin(**(payload or {}))
            assert created["mode"] == ("turn_based" if mode == "chat" else "full_duplex")
            assert isinstance(created["metrics"], dict)
            return await scenario(probe), probe

    return asyncio.run(run())


async def closing(probe):
    """The code with which the server closes, and what it said before."""
    events = []
    try:
        while True:
            events.append(await probe.read())
    except ConnectionClosed as closed:
        return closed.rcvd.code, events


async def answered(probe, ms=400, **more):
    """Say something, then nothing, until it is answered; the events of the answer."""
    for piece in pieces(speech(ms)):
        await probe.hear(piece, **more)
    events = []
    while not (events and events[-1].get("end_of_turn")):
        await probe.hear(silence(100), **more)
        events.append(await probe.read())
    return events


# Chat


def test_a_streamed_turn():
    async def scenario(probe):
        events = await probe.ask(user("Hello"), streaming=True, generation={"max_new_tokens": 64, "length_penalty": 1.1})
        return events, await probe.end(reason="user_stop"), await closing(probe)

    (events, closed, (code, after)), probe = in_session(scenario, "chat")
    assert kinds(probe.events) == ["session.queue_done", "session.created", "text", "response.done", "session.closed"]
    done = events[-1]
    assert text_of(events) == done["text"] == "You said: Hello"
    assert (done["reason"], done["audio"], done["metrics"]["wall_clock_ms"] >= 0) == ("turn_end", None, True)
    assert {event["response_id"] for event in events} == {done["response_id"]}
    assert {event["session_id"] for event in events} == {closed["session_id"]}
    assert (closed["reason"], code, after) == ("user_stop", 1000, [])


def test_a_turn_that_is_not_streamed():
    (events, _), _ = in_session(lambda probe: asking(probe, streaming=False), "chat")
    assert kinds(events) == ["response.done"]
    assert events[0]["text"] == "You said: Hello"


async def asking(probe, *messages, **options):
    return await probe.ask(*(messages or (user("Hello"),)), **options), None


def test_many_turns_on_one_connection():
    async def scenario(probe):
        history, texts = [], []
        for said in ("My name is Ada.", "What is my name?"):
            history.append(user(said))
            texts.append((await probe.ask(*history))[-1]["text"])
            history.append({"role": "assistant", "content": texts[-1]})
        return texts

    assert in_session(scenario, "chat")[0] == ["You said: My name is Ada.", "You said: What is my name?"]


@pytest.mark.parametrize("streaming", [True, False])
def test_an_answer_aloud(streaming):
    (events, _), _ = in_session(lambda probe: asking(probe, streaming=streaming, tts={"enabled": True}), "chat")
    assert kinds(events)[-1] == "response.done"
    sound = sound_of(events) if streaming else base64.b64decode(events[-1]["audio"])
    assert seconds(sound) > 0.5
    assert 0.01 < loudest(sound) <= 1


def test_parts_of_every_kind():
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "data": encoded(JPEG)},
        {"type": "audio", "data": encoded(speech(400))},
    ]
    (events, _), _ = in_session(lambda probe: asking(probe, user(*parts), image={"max_slice_nums": 4}), "chat")
    assert "What is this?" in events[-1]["text"]


def test_a_question_that_can_not_be_answered_costs_only_itself():
    async def scenario(probe):
        for wrong in ({}, {"messages": []}, {"messages": [{"role": "user", "content": [{"type": "image", "data": "!"}]}]}):
            await probe.send("input.append", input=wrong)
            assert (await probe.read())["type"] == "error"
        return (await probe.ask(user("Hello")))[-1]["text"]

    assert in_session(scenario, "chat")[0] == "You said: Hello"


def test_an_answer_that_breaks_ends_the_turn_and_not_the_session():
    async def scenario(probe):
        broken = await probe.ask(user("break midway"))
        return broken, (await probe.ask(user("Hello")))[-1]

    (broken, whole), _ = in_session(scenario, "chat")
    assert (broken[-1]["reason"], [event["error"]["message"] for event in broken if event["type"] == "error"]) == (
        "error",
        ["The model broke."],
    )
    assert whole["text"] == "You said: Hello"


# Full duplex


@pytest.mark.parametrize("mode", ["audio", "video"])
def test_a_spoken_turn(mode):
    frames = {"video_frames": [encoded(JPEG)], "max_slice_nums": 2} if mode == "video" else {}
    events, _ = in_session(lambda probe: answered(probe, **frames), mode, payload={"system_prompt": "Be brief."})
    assert kinds(events)[0] == "listen" and kinds(events)[-1] == "listen"
    assert text_of(events) == "You said: Good morning."
    assert seconds(sound_of(events)) > 0.5
    said = [event for event in events if event["kind"] != "listen" or event.get("end_of_turn")]
    assert len({event["response_id"] for event in said}) == 1
    assert all(event["text"] == "" for event in events if event["kind"] == "listen")


def test_the_default_is_video():
    async def scenario():
        async with probing(URL) as socket:
            probe = Probe(socket)
            await probe.begin()
            await probe.hear(silence(100), video_frames=[encoded(JPEG)])
            return (await probe.until("listen", "error"))[-1]["type"]

    assert asyncio.run(scenario()) == "response.output.delta"


def test_forced_listening_cuts_an_answer_off():
    async def scenario(probe):
        await answered(probe)
        for piece in pieces(speech(400)):
            await probe.hear(piece)
        while True:
            await probe.hear(silence(100))
            if (await probe.read()).get("kind") in ("text", "audio"):
                break
        await probe.hear(silence(100), force_listen=True)
        cut = (await probe.until("listen", where=lambda event: event.get("end_of_turn")))[-1]
        await probe.hear(silence(100))
        return cut, (await probe.read())

    (cut, after), _ = in_session(scenario, "audio")
    assert cut["interrupted"] is True
    assert (after["kind"], after.get("end_of_turn")) == ("listen", None)


def test_sound_that_stops_is_a_pause():
    async def scenario(probe):
        await probe.hear(silence(100))
        await probe.until("listen")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await probe.read()
        return text_of(await answered(probe))

    assert in_session(scenario, "audio")[0] == "You said: Good morning."


@pytest.mark.parametrize("sound", ["not base64", encoded(b"abc"), encoded(NOT_A_NUMBER), encoded(silence(6000)), 7])
def test_sound_that_is_none_costs_only_itself(sound):
    async def scenario(probe):
        await probe.send("input.append", input={"audio": sound})
        refused = await probe.read()
        return refused["error"]["code"], text_of(await answered(probe))

    assert in_session(scenario, "audio")[0] == ("invalid_payload", "You said: Good morning.")


@pytest.mark.parametrize("frames", [["not base64"], [encoded(b"no picture")], [encoded(JPEG)] * 9])
def test_pictures_that_are_none_cost_only_themselves(frames):
    async def scenario(probe):
        await probe.hear(silence(100), video_frames=frames)
        return (await probe.read())["error"]["code"], text_of(await answered(probe))

    assert in_session(scenario, "video")[0] == ("invalid_payload", "You said: Good morning.")


# Beginning and ending


def early(*events):
    """What the server says to a client that doesn't wait for its turn."""

    async def scenario():
        async with probing(URL, "audio", model="parrot") as socket:
            probe = Probe(socket)
            for kind, fields in events:
                await probe.send(kind, **fields)
            return await probe.until("listen", "session.closed")

    return asyncio.run(scenario())


def test_an_early_beginning_is_kept_until_it_can_be_taken():
    events = early(("session.init", {"payload": {}}), ("input.append", {"input": {"audio": encoded(silence(100))}}))
    assert kinds(events) == ["session.queue_done", "session.created", "listen"]


def test_sound_begins_a_session_too():
    events = early(("input.append", {"input": {"audio": encoded(silence(100))}}))
    assert kinds(events) == ["session.queue_done", "session.created", "listen"]


def test_leaving_before_the_beginning():
    closed = early(("session.close", {"reason": "user_stop"}))[-1]
    assert (closed["session_id"], closed["reason"]) == (None, "user_stop")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"reason": "user_stop"}, "user_stop"),
        ({"reason": "tab_hidden"}, "tab_hidden"),
        ({}, "client_closed"),
        ({"reason": "timeout"}, "client_closed"),
    ],
)
def test_reasons_of_leaving(fields, told):
    assert in_session(lambda probe: probe.end(**fields), "audio")[0]["reason"] == told


def test_what_makes_no_sense_is_told_and_does_no_harm():
    async def scenario(probe):
        codes = []
        for wrong in ("{", "[]", "{}", '{"type": "session.pause"}', '{"type": "session.init", "payload": {}}', '{"type": "input.append"}'):
            await probe.socket.send(wrong)
            codes.append((await probe.read())["error"]["code"])
        return codes, (await probe.end())["reason"]

    (codes, reason), _ = in_session(scenario, "audio")
    assert codes == ["invalid_json", "invalid_payload", "missing_field", "unknown_event", "unexpected_event", "missing_field"]
    assert reason == "client_closed"


def test_a_beginning_without_a_payload():
    async def scenario():
        async with probing(URL, "audio", model="parrot") as socket:
            probe = Probe(socket)
            await probe.until("session.queue_done")
            await probe.send("session.init")
            return (await probe.read())["error"]["code"]

    assert asyncio.run(scenario()) == "missing_field"


@pytest.mark.parametrize(
    ("query", "code"), [({"mode": "telepathy"}, "invalid_value"), ({"mode": "audio", "resume": "none"}, "session_not_found")]
)
def test_what_can_not_be_had_is_told_before_the_close(query, code):
    async def scenario():
        async with probing(URL, **query) as socket:
            return await closing(Probe(socket))

    closed, events = asyncio.run(scenario())
    assert (closed, [event["error"]["code"] for event in events]) == (1008, [code])


def test_bytes_are_no_events():
    async def scenario(probe):
        await probe.socket.send(b"\0\1")
        return await closing(probe)

    closed, events = in_session(scenario, "audio")[0]
    assert (closed, events[-1]["type"]) == (1003, "error")


def test_a_client_that_never_begins_is_let_go(strict):
    async def scenario():
        async with probing(strict.url, "audio", headers={"Authorization": f"Bearer {strict.key}"}) as socket:
            return await closing(Probe(socket))

    code, events = asyncio.run(scenario())
    assert (code, [(event["session_id"], event["reason"]) for event in events[-1:]]) == (1000, [(None, "init_timeout")])


def test_a_silent_chat_does_not_keep_its_place(strict):
    async def scenario():
        async with probing(strict.url, "chat", headers={"Authorization": f"Bearer {strict.key}"}) as socket:
            probe = Probe(socket)
            await probe.begin()
            return await closing(probe)

    code, events = asyncio.run(scenario())
    assert (code, events[-1]["reason"]) == (1000, "idle_timeout")


# The queue


def test_the_queue_tells_its_places():
    async def scenario():
        async with probing(URL, "chat", model="one-slot") as one, probing(URL, "audio", model="one-slot") as two:
            first, second = Probe(one), Probe(two)
            await first.begin()
            queued = (await second.until("session.queued"))[-1]
            await first.end()
            await second.begin()
            await second.end()
        return queued, second.events

    queued, events = asyncio.run(scenario())
    assert (queued["position"], queued["queue_length"], bool(queued["ticket_id"])) == (1, 1, True)
    assert kinds(events) == ["session.queued", "session.queue_done", "session.created", "session.closed"]


def test_a_full_queue_is_told_before_the_close():
    async def scenario():
        async with asyncio.TaskGroup() as tasks, probing(URL, "chat", model="one-slot") as one:
            first, sockets = Probe(one), []
            await first.begin()
            for _ in range(4):
                sockets.append(await probing(URL, "chat", model="one-slot"))
                await Probe(sockets[-1]).until("session.queued")
            async with probing(URL, "chat", model="one-slot") as last:
                told = await closing(Probe(last))
            for socket in sockets:
                tasks.create_task(socket.close())
        return told

    closed, events = asyncio.run(scenario())
    assert (closed, events[-1]["error"]["code"]) == (1013, "queue_full")


# Coming back


def test_a_client_that_lost_its_network_comes_back_and_misses_nothing():
    async def scenario():
        async with probing(URL, "chat", model="parrot", resumable=1) as socket:
            probe = Probe(socket)
            created = await probe.begin()
            await probe.send("input.append", input={"messages": [user("Tell me a story.")]})
            events = await probe.until("text")
            socket.transport.abort()
        seen = probe.events[-1]["seq"]
        async with probing(URL, "chat", resume=created["resume_token"], after=seen) as socket:
            again = Probe(socket)
            while not text_of(events + again.events).endswith("parrot."):
                await again.read()
            closed = await again.end()
        return seen, text_of(events + again.events), again.events, closed["session_id"] == created["session_id"]

    seen, text, events, is_same = asyncio.run(scenario())
    assert text == "Once upon a time there was a parrot."
    assert [event["seq"] for event in events] == list(range(seen + 1, seen + 1 + len(events)))
    assert is_same and "session.resumed" in kinds(events)


# The embedded model


def test_the_embedded_model_in_chat():
    said = user("What is the capital of France? Answer in one sentence.")
    (events, _), _ = in_session(lambda probe: asking(probe, said, generation={"max_new_tokens": 40}), "chat", model=MODEL)
    assert text_of(events) == events[-1]["text"] != ""
    assert events[-1]["usage"]["output_tokens"] > 0


BRIEF = {"system_prompt": "Answer with one short sentence.", "config": {"max_tokens": 40}}
"""A small model may say the same for ever."""


@pytest.mark.skipif("ANTIPHON_QUESTION" not in os.environ, reason="this server can't listen and speak")
@pytest.mark.parametrize("mode", ["video"] if os.environ.get("ANTIPHON_SHORT") else ["audio", "video"])
def test_the_embedded_model_in_full_duplex(mode):
    async def scenario(probe):
        events = []
        sound = iter(pieces(question(), 200))
        while not (events and events[-1].get("end_of_turn")):
            await probe.hear(next(sound, silence(200)), **({"video_frames": [encoded(JPEG)]} if mode == "video" else {}))
            try:
                async with asyncio.timeout(0.2):
                    while not (events and events[-1].get("end_of_turn")):
                        events.append(await probe.read())
            except TimeoutError:
                pass
        return events

    events, _ = in_session(scenario, mode, model=MODEL, payload=BRIEF)
    assert text_of(events)
    assert seconds(sound_of(events)) > 0.3


# As programs


def run(*arguments):
    command = [sys.executable, Path(__file__).with_name("probes.py"), *arguments, "--url", URL]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return [json.loads(line) for line in told.splitlines()]


def test_the_probes_as_programs(tmp_path):
    sound, picture, answer = tmp_path / "question.f32", tmp_path / "one.jpg", tmp_path / "answer.pcm"
    sound.write_bytes(speech(400))
    picture.write_bytes(JPEG)
    assert kinds(run("chat", "--say", "Hello", "--aloud", str(answer)))[-2:] == ["response.done", "session.closed"]
    assert seconds(answer.read_bytes()) > 0.5
    for mode, more in (("audio", ()), ("video", ("--pictures", str(picture)))):
        events = run(mode, "--sound", str(sound), "--seconds", "4", "--pace", "0.1", *more)
        assert kinds(events)[:2] == ["session.queue_done", "session.created"]
        assert "You said" in text_of(events)
