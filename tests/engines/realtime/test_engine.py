"""An engine before a Realtime server: answers, in both dialects."""

import pytest

from antiphon.engine_api import events, history as engine_history
from antiphon.engine_api.options import FunctionTool, ToolChoice, Voice
from support.engines.realtime_server import answered, ask, hello, of, playing, said, voice_of

ALOUD = Voice(name="marin")
both = pytest.mark.parametrize("dialect", ["ga", "beta"])


@both
def test_a_question_in_writing_is_answered_in_writing(dialect):
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1", instructions="Be brief."))
        assert await heard.end_of() == events.ResponseEnded("resp_1")
        assert heard.text() == "Hello there."
        used = next(word for word in heard.words if isinstance(word, events.Usage))
        assert (used.input_tokens, used.output_tokens) == (9, 3)
        (create,) = (event for event in server.session.asked if event["type"] == "response.create")
        assert create["response"]["instructions"] == "Be brief."
        assert create["response"].get("output_modalities", create["response"].get("modalities")) == ["text"]
        assert server.session.texts() == ["user: Hi", "assistant: "]

    playing(scenario, dialect=dialect)


@both
def test_a_question_with_a_voice_is_answered_aloud_words_before_their_sound(dialect):
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1", voice=ALOUD))
        await heard.end_of()
        kinds = [type(word) for word in heard.words if isinstance(word, events.AudioTranscriptDelta | events.AudioDelta)]
        assert kinds == [events.AudioTranscriptDelta, events.AudioDelta] * 2
        assert b"".join(word.pcm for word in heard.words if isinstance(word, events.AudioDelta)) == voice_of(2)
        asked = server.session.asked[-1]["response"]
        assert asked.get("voice") or asked["audio"]["output"]["voice"] == "marin"

    playing(scenario, dialect=dialect)


@both
def test_a_call_is_told_with_its_arguments_and_its_result_goes_back(dialect):
    async def scenario(conversation, heard, server):
        tool = FunctionTool("weather", "Tells it.", {"type": "object", "properties": {}})
        conversation.send(ask("resp_1", tools=(tool,), tool_choice=ToolChoice("required")))
        await heard.end_of()
        told = [word for word in heard.words if isinstance(word, events.ToolCallStarted | events.ToolArgumentsDelta | events.ToolCallDone)]
        assert told == [
            events.ToolCallStarted("resp_1", "call_1", "weather"),
            events.ToolArgumentsDelta("resp_1", "call_1", '{"city":'),
            events.ToolArgumentsDelta("resp_1", "call_1", '"Ulm"}'),
            events.ToolCallDone("resp_1", "call_1"),
        ]
        history = (
            said("Hi"),
            engine_history.ToolCall("call_1", "weather", '{"city":"Ulm"}'),
            engine_history.ToolResult("call_1", (engine_history.TextPart("rain"),)),
        )
        before = len(server.session.asked)
        conversation.send(ask("resp_2", *history))
        await heard.end_of("resp_2")
        assert [event["type"] for event in server.session.asked[before:]] == ["conversation.item.create", "response.create"]
        assert server.session.texts()[:3] == ["user: Hi", "call weather", "result rain"]

    async def calling(answer):
        await answer.created()
        if answer.asked.get("tools"):
            await answer.call("weather", ['{"city":', '"Ulm"}'])
        await answer.done()

    playing(scenario, calling, dialect=dialect)


def test_the_next_answer_adds_only_what_is_new():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.end_of()
        conversation.send(ask("resp_2", said("Hi"), answered("Hello there."), said("And?")))
        await heard.end_of("resp_2")
        assert server.session.kinds().count("conversation.item.create") == 2
        assert server.session.kinds().count("conversation.item.delete") == 0
        assert len(server.sessions) == 1

    playing(scenario)


def test_a_history_that_was_changed_is_changed_upstream_where_it_differs():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1", said("one"), said("two"), said("four")))
        await heard.end_of()
        before = len(server.session.asked)
        conversation.send(ask("resp_2", said("zero"), said("one"), said("three"), said("four"), answered("Hello there.")))
        await heard.end_of("resp_2")
        asked = server.session.asked[before:]
        assert [event["type"].removeprefix("conversation.item.") for event in asked] == ["delete", "create", "create", "response.create"]
        assert server.session.texts() == [
            "user: zero", "user: one", "user: three", "user: four", "assistant: ", "assistant: "
        ]  # fmt: skip

    playing(scenario)


def test_an_answer_of_which_less_was_heard_is_cut_off_there_upstream():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1", voice=ALOUD))
        await heard.end_of()
        conversation.send(ask("resp_2", said("Hi"), answered("Hello", played_ms=80), said("Wait")))
        await heard.end_of("resp_2")
        assert server.session.texts()[:3] == ["user: Hi", "assistant:  cut at 80", "user: Wait"]
        assert "conversation.item.delete" not in server.session.kinds()

    playing(scenario)


def test_an_answer_aside_leaves_the_conversation_upstream_as_it_is():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.end_of()
        conversation.send(ask("resp_2", said("Hi"), said("Which language is that?"), out_of_band=True))
        await heard.end_of("resp_2")
        asked = server.session.asked[-1]["response"]
        assert asked["conversation"] == "none"
        assert [item["type"] for item in asked["input"]] == ["item_reference", "message"]
        assert server.session.texts() == ["user: Hi", "assistant: "]
        conversation.send(ask("resp_3", said("Hi"), answered("Hello there."), out_of_band=True))
        await heard.end_of("resp_3")
        assert "input" not in server.session.asked[-1]["response"], "it is what the conversation is already"

    playing(scenario)


def test_answers_at_the_same_time_are_told_apart():
    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        conversation.send(ask("resp_2", said("Sum it up")))
        await server.until(lambda: len(server.answering) == 2)
        first, second = server.answering
        second.go.set()
        await heard.end_of("resp_2")
        first.go.set()
        await heard.end_of("resp_1")
        assert len(of(heard, events.ResponseEnded)) == 2
        assert heard.text("resp_1") == "I am resp_1"
        assert heard.text("resp_2") == "I am resp_2"

    async def named(answer):
        await answer.created()
        await answer.go.wait()
        await answer.say("I am ", "resp_2" if answer.asked.get("conversation") == "none" else "resp_1")
        await answer.done()

    playing(scenario, named)


@pytest.mark.parametrize(
    ("status", "reason", "ended"),
    [
        ("incomplete", "max_output_tokens", events.ResponseEnded("resp_1", "length")),
        ("incomplete", "content_filter", events.ResponseEnded("resp_1", "content_filter")),
        ("cancelled", "turn_detected", events.ResponseEnded("resp_1", "cancelled")),
    ],
)
def test_an_answer_ends_as_it_ended_upstream(status, reason, ended):
    async def ending(answer):
        await answer.created()
        await answer.say("So")
        await answer.done(status, reason=reason)

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        assert await heard.end_of() == ended

    playing(scenario, ending)


@pytest.mark.parametrize(
    ("code", "status"), [("rate_limit_exceeded", 429), ("insufficient_quota", 429), ("server_error", 502), ("invalid_api_key", 502)]
)
def test_an_answer_that_failed_upstream_breaks_with_its_code(code, status):
    async def failing(answer):
        if code != "server_error":
            await answer.created()  # some fail without
        await answer.done("failed", error={"type": "server_error", "code": code, "message": "It can't be."})

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        broke = await heard.end_of()
        assert isinstance(broke, events.ResponseFailed)
        assert broke.status == status
        assert broke.code == ("upstream_credentials" if code == "invalid_api_key" else code)

    playing(scenario, failing)


def test_usage_is_told_by_kind():
    usage = {
        "total_tokens": 30,
        "input_tokens": 20,
        "output_tokens": 10,
        "input_token_details": {
            "text_tokens": 5, "audio_tokens": 12, "image_tokens": 3, "cached_tokens": 8, "cached_tokens_details": {"audio_tokens": 6}
        },
        "output_token_details": {"text_tokens": 4, "audio_tokens": 6},
    }  # fmt: skip

    async def counting(answer):
        await answer.created()
        await answer.done(usage=usage)

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        await heard.end_of()
        assert heard.words[0] == events.Usage(
            id="resp_1", input_tokens=20, output_tokens=10, cached_tokens=8, input_audio_tokens=12, input_image_tokens=3,
            output_audio_tokens=6, cached_audio_tokens=6,
        )  # fmt: skip

    playing(scenario, counting)


def test_a_server_that_answers_unasked_is_told_to_stop():
    async def eager(answer):
        await hello(answer)
        await answer.session.send("response.created", response=answer.response("in_progress") | {"id": "resp_x"})

    async def scenario(conversation, heard, server):
        conversation.send(ask("resp_1"))
        await heard.end_of()
        await server.until(lambda: "response.cancel" in server.session.kinds())
        assert server.session.asked[-1]["response_id"] == "resp_x"
        assert [type(word) for word in heard.words] == [events.TextDelta, events.TextDelta, events.Usage, events.ResponseEnded], (
            "nothing is said of it"
        )

    playing(scenario, eager)


def test_what_a_server_answers_unasked_is_taken_for_what_is_asked_of_it_meanwhile():
    async def impatient(answer):
        await answer.created()
        await answer.session.error("conversation_already_has_active_response", "Already answering.", answer.event_id)
        await answer.say("Hello there.")
        await answer.done()

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        assert await heard.end_of() == events.ResponseEnded("resp_1")
        assert heard.text() == "Hello there."
        assert not any(isinstance(word, events.EngineError) for word in heard.words)

    playing(scenario, impatient)


@pytest.mark.parametrize("nonsense", ["{", "[]", '"so"', '{"type": 3}', '{"type": "vendor.thing"}', '{"type": "response.done"}'])
def test_what_is_no_event_is_passed_over(nonsense):
    async def babbling(answer):
        await answer.created()
        await answer.say("Hello")
        await answer.session.socket.send_str(nonsense)
        await answer.say(" there.")
        await answer.done()

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        assert await heard.end_of() == events.ResponseEnded("resp_1")
        assert heard.text() == "Hello there."

    playing(scenario, babbling)


def test_an_upstream_that_only_babbles_is_left():
    async def babbling(answer):
        await answer.created()
        for _ in range(20):
            await answer.session.socket.send_str("{")

    async def scenario(conversation, heard, _server):
        conversation.send(ask("resp_1"))
        assert (await heard.end_of()).code == "upstream_malformed"

    playing(scenario, babbling)
