"""Questions to MiniCPM-o workers, one after the other, as sessions of all protocols ask them."""

import base64

import pytest

from antiphon.audio import wav_file
from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.options import Sampling, Voice
from antiphon.wire.upstream.minicpmo_backend import BackendEvent
from support.engines.omni_doubles import GatewayWorker, Native, Worker, ask, conversing, engine, facing, floats_of, loud, played, quiet

KINDS = [
    pytest.param(Worker, {}, id="python"),
    pytest.param(GatewayWorker, {"protocol": "worker"}, id="worker"),
    pytest.param(Native, {}, id="native"),
]
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n and more").decode()


def text(client, id="resp_1"):
    return "".join(word.text for word in client.log.of(events.TextDelta, events.AudioTranscriptDelta) if word.id == id)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_questions_are_answered_in_their_order(kind, options):
    async def scenario():
        async with facing(worker := kind(), "chat", **options) as client:
            client.tell(ask("resp_1", "one"), ask("resp_2", "two"))
            assert await client.log.end_of("resp_2") == events.ResponseEnded("resp_2")
            assert text(client) == "You said: one "
            assert text(client, "resp_2") == "You said: two "
            used, _ = client.log.of(events.Usage)
            assert (used.input_tokens, used.output_tokens) == (50, 3)
            assert {payload["mode"] for payload in worker.inits} == {"turn_based"}
            assert worker.sessions == (2 if kind is Native else 1)
        assert not worker.breaches

    played(scenario)


def test_all_that_was_said_reaches_the_model_as_it_was_said():
    async def scenario():
        async with facing(worker := Worker(), "chat") as client:
            history = (
                engine_history.Message("developer", (engine_history.TextPart("Be brief."),)),
                engine_history.Message("user", (engine_history.ImagePart(url=PNG), engine_history.TextPart("What is this?"))),
                engine_history.Message("assistant", (engine_history.TextPart("A cat."),)),
                engine_history.ReasoningItem("Hm."),
                engine_history.ToolCall("call_1", "look", "{}"),
                engine_history.ToolResult("call_1", (engine_history.TextPart("It is a cat."),)),
                engine_history.Message("user", (engine_history.AudioPart(base64.b64encode(wav_file(loud(200), 16_000)).decode(), "wav"),)),
                engine_history.Message("user", (engine_history.SpeechPart(quiet(200, 24_000), 24_000),)),
                engine_history.Message(
                    "user",
                    (engine_history.SpeechPart(b"", 24_000, "turn_1", "heard before"), engine_history.SpeechPart(b"", 24_000, "turn_2")),
                ),
                engine_history.Message("user", (engine_history.VideoPart("AAAA", 2),)),
            )
            client.tell(commands.Respond(id="resp_1", history=history, instructions="You are a cat."))
            await client.log.end_of("resp_1")
            (asked,) = worker.asked
            said = [(message["role"], message["content"]) for message in asked["messages"]]
            assert said[:5] == [
                ("system", "You are a cat."),
                ("system", "Be brief."),
                ("user", [{"type": "image", "data": PNG.partition(",")[2]}, {"type": "text", "text": "What is this?"}]),
                ("assistant", "A cat."),
                ("user", "It is a cat."),
            ]
            (recording,), (speech,) = said[5][1], said[6][1]
            assert 3_100 <= len(floats_of(recording["data"])) <= 3_200
            assert len(floats_of(speech["data"])) == 3_200
            assert [part["text"] for part in said[7][1]] == ["heard before", "(This was said aloud, and its words are not known.)"]
            assert said[8][1] == [{"type": "video", "data": "AAAA", "stack_frames": 2}]
            assert asked["omni_mode"] is True
            assert asked["streaming"] is True

    played(scenario)


def test_an_answer_is_spoken_with_the_voice_it_is_asked_for_at_the_rate_it_is_asked_for():
    async def scenario():
        async with facing(worker := Worker(), "chat") as client:
            client.tell(ask(voice=Voice(rate_hz=8_000, reference=loud(100))))
            await client.log.end_of("resp_1")
            assert text(client) == "You said: Hi "
            assert not client.log.of(events.TextDelta)
            assert abs(sum(len(word.pcm) for word in client.log.of(events.AudioDelta)) // 2 - 3 * 800) <= 16
            assert worker.inits[0]["use_tts"] is True
            assert worker.asked[0]["tts"]["enabled"] is True
            assert len(floats_of(worker.asked[0]["tts"]["ref_audio_data"])) == 1600

    played(scenario)


def test_an_answer_that_is_as_long_as_it_may_be_ends_for_its_length():
    async def scenario():
        async with facing(worker := Worker(), "chat") as client:
            extra = {"length_penalty": 1.3, "max_slice_nums": 4, "seed": 1}
            client.tell(ask(text="Count", sampling=Sampling(max_tokens=5, extra=extra)))
            assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1", "length")
            assert worker.asked[0]["generation"] == {"max_new_tokens": 5, "length_penalty": 1.3}
            assert worker.asked[0]["image"] == {"max_slice_nums": 4}

    played(scenario)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_an_answer_that_is_cancelled_costs_its_session_and_the_next_is_answered_in_another(kind, options):
    async def scenario():
        async with facing(worker := kind(recovers_s=0.05), "chat", **options) as client:
            client.tell(ask("resp_1", "Count", sampling=Sampling(max_tokens=5_000)))
            await client.log.some(events.TextDelta)
            client.tell(commands.Cancel("resp_1"), ask("resp_2", "two"))
            assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1", "cancelled")
            assert await client.log.end_of("resp_2") == events.ResponseEnded("resp_2")
            assert text(client, "resp_2") == "You said: two "
            assert worker.sessions == 2
            ended_at = client.log.words.index(client.log.ends("resp_1")[0])
            assert not [word for word in client.log.words[ended_at + 1 :] if word.id == "resp_1"]

    played(scenario)


def test_what_comes_of_an_answer_right_after_it_was_cancelled_does_not_save_its_session():
    async def scenario():
        async with facing(worker := Worker(), "chat") as client:
            client.tell(ask("resp_1", "Count", sampling=Sampling(max_tokens=5_000)))
            await client.log.some(events.TextDelta)
            client.tell(commands.Cancel("resp_1"), ask("resp_2", "two"))
            client.conversation.on_events([BackendEvent("response.output.delta", kind="text", text="late ")])
            await client.log.end_of("resp_2")
            assert text(client, "resp_2") == "You said: two "
            assert worker.sessions == 2

    played(scenario)


def test_a_question_that_waits_can_be_taken_back():
    async def scenario():
        async with facing(worker := Worker(creates_s=0.05), "chat") as client:
            client.tell(ask("resp_1"), ask("resp_2"), ask("resp_3"), commands.Cancel("resp_2"), commands.Cancel("resp_none"))
            await client.log.end_of("resp_3")
            assert client.log.ends("resp_2") == [events.ResponseEnded("resp_2", "cancelled")]
            assert len(worker.asked) == 2

    played(scenario)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_conversation_can_go_from_speaking_all_the_time_to_answering(kind, options):
    async def scenario():
        async with facing(worker := kind(recovers_s=0.02), **options) as client:
            client.tell(commands.StartDuplex())
            await client.log.some(events.DuplexStarted)
            client.tell(commands.AppendAudio(loud()))
            (sound, *_) = await client.log.some(events.AudioDelta)
            client.tell(ask())
            assert await client.log.end_of("resp_1") == events.ResponseEnded("resp_1")
            assert client.log.ends(sound.id) == [events.ResponseEnded(sound.id, "cancelled")]
            assert [payload["mode"] for payload in worker.inits] == ["full_duplex", "turn_based"]
        assert not worker.breaches

    played(scenario)


def test_what_can_not_be_given_to_the_model_is_the_clients_mistake_and_costs_no_session():
    async def scenario():
        async with facing(worker := Worker(), "chat") as client:
            client.tell(
                ask("resp_1", "Hi", engine_history.AudioPart("AAAA", "wav")), ask("resp_2", "Hi", engine_history.FilePart(url="http://x/y"))
            )
            client.tell(ask("resp_3"))
            broke = [await client.log.end_of(f"resp_{number}") for number in (1, 2)]
            assert [word.status for word in broke] == [400, 400]
            assert await client.log.end_of("resp_3") == events.ResponseEnded("resp_3")
            assert not client.log.of(events.EngineLost)
            assert worker.sessions == 1

    played(scenario)


def test_two_workers_have_two_conversations_and_a_third_is_told_that_they_are_busy():
    async def scenario():
        async with Worker().open() as first, Worker().open() as second:
            omni = engine(first, second)
            assert list(omni.workers) == [f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"]
            assert omni.capabilities.sessions == 2
            async with conversing(omni, "chat") as one, conversing(omni, "chat") as other:
                one.tell(ask())
                other.tell(ask())
                await one.log.end_of("resp_1")
                await other.log.end_of("resp_1")
                with pytest.raises(Exception, match="busy"):
                    async with conversing(omni, "chat"):
                        pass
            assert (first.sessions, second.sessions) == (1, 1)
            await omni.stop()

    played(scenario)
