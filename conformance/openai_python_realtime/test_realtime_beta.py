"""openai-python's `client.beta.realtime` converses with antiphon: the dialect that the original no longer speaks."""

import asyncio
import contextlib
import json
from typing import Annotated

import pytest
from dialogue import URL, WEATHER, Dialogue, client_of, kinds, message, only, seconds, silence, speech
from openai.types.beta.realtime import RealtimeServerEvent
from pydantic import Field, TypeAdapter

TYPES = TypeAdapter(Annotated[RealtimeServerEvent, Field(discriminator="type")])
SPOKEN_TURN = {"turn_detection": {"type": "server_vad"}, "input_audio_transcription": {"model": "whisper-1"}}


def parse(raw):
    """An event as its type has it, save that a session's knows the original's models only, and wants a secret that HTTP alone tells."""
    event = json.loads(raw)
    if event["type"].startswith("session."):
        assert event["session"].pop("model", "parrot") == "parrot"
    if event["type"] == "transcription_session.updated":
        event["session"]["client_secret"] = {"value": "", "expires_at": 0}
    return TYPES.validate_python(event)


def beta_client_of(key):
    """A client whose beta has an address of its own; it would insist on TLS at that of the rest."""
    return client_of(key, websocket_base_url=URL.replace("http", "ws"))


@contextlib.asynccontextmanager
async def connected(session=None, key="none", **more):
    """A dialogue in a session that is as it was asked to be."""
    async with beta_client_of(key) as client, client.beta.realtime.connect(model="parrot", **more) as connection:
        dialogue = Dialogue(connection, parse)
        assert kinds(await dialogue.all_of("session.created", "conversation.created")) == ["session.created", "conversation.created"]
        if session is not None:
            await connection.session.update(session=session)
            assert (await dialogue.read()).type == "session.updated"
        yield dialogue


def writing(**more):
    return connected({"modalities": ["text"], **more})


def test_session_is_told_whole_and_flat():
    async def scenario():
        async with connected() as dialogue:
            created = dialogue.events[0].session
            await dialogue.connection.session.update(session={"instructions": "Be brief.", "voice": "sage", "temperature": 0.7})
            return created, (await dialogue.read()).session

    created, updated = asyncio.run(scenario())
    assert created.id.startswith("sess_")
    assert sorted(created.modalities) == ["audio", "text"]
    assert (created.input_audio_format, created.turn_detection.type) == ("pcm16", "server_vad")
    assert updated == created.model_copy(update={"instructions": "Be brief.", "voice": "sage", "temperature": 0.7})


def test_text_turn():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.write("Hello")
            await dialogue.connection.response.create(response={"metadata": {"topic": "greeting"}})
            return await dialogue.until("response.done")

    events = asyncio.run(scenario())
    assert kinds(events) == [
        "conversation.item.created",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.created",
        "response.content_part.added",
        "response.text.delta",
        "response.text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    response = events[-1].response
    assert "".join(event.delta for event in only(events, "response.text.delta")) == "You said: Hello"
    assert (response.status, response.modalities, response.metadata) == ("completed", ["text"], {"topic": "greeting"})
    assert (response.output[0].content[0].type, response.output[0].content[0].text) == ("text", "You said: Hello")


def test_tool_round_trip():
    async def scenario():
        async with writing(tools=[WEATHER]) as dialogue:
            await dialogue.write("How is the weather?")
            await dialogue.connection.response.create()
            called = await dialogue.until("response.done")
            call = called[-1].response.output[0]
            await dialogue.connection.conversation.item.create(
                item={"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            )
            return called, await dialogue.answer()

    called, answer = asyncio.run(scenario())
    [done] = only(called, "response.function_call_arguments.done")
    assert (done.call_id, json.loads(done.arguments)) == ("call_w", {"city": "Paris"})
    [begun] = only(called, "response.output_item.added")
    assert (begun.item.type, begun.item.name, begun.item.arguments) == ("function_call", "get_weather", "")
    assert answer.output[0].content[0].text == "The tool says sunny"


def test_spoken_turn():
    async def scenario():
        async with connected(SPOKEN_TURN) as dialogue:
            await dialogue.say(speech(1000) + silence(1000))
            return await dialogue.all_of("response.done", "conversation.item.input_audio_transcription.completed")

    events = asyncio.run(scenario())
    of_the_turn = [kind for kind in kinds(events) if not kind.startswith("conversation.item.input_audio_transcription")]
    assert of_the_turn[:9] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.created",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.created",
        "response.content_part.added",
    ]
    [heard] = only(events, "conversation.item.input_audio_transcription.completed")
    assert (heard.item_id, heard.transcript) == (events[0].item_id, "Good morning.")
    said = only(events, "response.done")[0].response.output[0].content[0]
    assert (said.type, said.transcript) == ("audio", "You said: Good morning.")
    assert "".join(event.delta for event in only(events, "response.audio_transcript.delta")) == said.transcript
    assert seconds(only(events, "response.audio.delta")) > 1


def test_speech_cuts_off_the_answer_that_is_playing():
    async def scenario():
        async with connected(SPOKEN_TURN) as dialogue:
            await dialogue.write("Tell me a story.")
            await dialogue.connection.response.create()
            delta = (await dialogue.until("response.audio.delta"))[-1]
            await dialogue.say(speech(500))
            cut = (await dialogue.until("response.done"))[-1].response
            await dialogue.connection.conversation.item.truncate(item_id=delta.item_id, content_index=0, audio_end_ms=50)
            truncated = (await dialogue.until("conversation.item.truncated"))[-1]
            await dialogue.say(silence(1000))
            return delta, cut, truncated, (await dialogue.until("response.done"))[-1].response

    delta, cut, truncated, answer = asyncio.run(scenario())
    assert (cut.status, cut.status_details.reason, cut.output[0].status) == ("cancelled", "turn_detected", "incomplete")
    assert (truncated.item_id, truncated.audio_end_ms) == (delta.item_id, 50)
    assert answer.output[0].content[0].transcript == "You said: Good morning."


def test_turn_committed_by_hand():
    async def scenario():
        async with connected({"modalities": ["text"]}) as dialogue:
            # Through `send`, as the SDK's typed call leaves a null out.
            await dialogue.connection.send({"type": "session.update", "session": {"turn_detection": None}})
            updated = await dialogue.read()
            await dialogue.say(speech(300))
            await dialogue.connection.input_audio_buffer.clear()
            await dialogue.until("input_audio_buffer.cleared")
            await dialogue.say(speech(300))
            await dialogue.connection.input_audio_buffer.commit()
            committed = await dialogue.until("conversation.item.created")
            return updated, committed, await dialogue.answer()

    updated, committed, answer = asyncio.run(scenario())
    assert updated.session.turn_detection is None
    assert kinds(committed) == ["input_audio_buffer.committed", "conversation.item.created"]
    assert answer.output[0].content[0].text == "You said: Good morning."


def test_response_beside_the_conversation():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.write("Tell me a story.")
            await dialogue.connection.response.create()
            await dialogue.until("response.text.delta")
            aside = {"conversation": "none", "metadata": {"for": "the log"}, "input": [message("Aside")]}
            await dialogue.connection.response.create(response=aside)
            beside = (await dialogue.until("response.done"))[-1].response
            await dialogue.connection.response.cancel()
            return beside, (await dialogue.until("response.done"))[-1].response

    beside, story = asyncio.run(scenario())
    assert (beside.status, beside.conversation_id, beside.metadata) == ("completed", None, {"for": "the log"})
    assert beside.output[0].content[0].text == "You said: Aside"
    assert (story.status, story.status_details.reason) == ("cancelled", "client_cancelled")


REFUSED = {
    "item_delete_invalid_item_id": lambda connection: connection.conversation.item.delete(item_id="nothing", event_id="mine"),
    "response_cancel_not_active": lambda connection: connection.response.cancel(event_id="mine"),
    "input_audio_buffer_commit_empty": lambda connection: connection.input_audio_buffer.commit(event_id="mine"),
    "decimal_above_max_value": lambda connection: connection.session.update(session={"temperature": 3}, event_id="mine"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_cannot_be_done_is_refused_and_the_session_goes_on(code):
    async def scenario():
        async with writing() as dialogue:
            await REFUSED[code](dialogue.connection)
            refused = await dialogue.refusal()
            await dialogue.write("Hello")
            return refused, await dialogue.answer()

    refused, answer = asyncio.run(scenario())
    assert (refused.type, refused.code, refused.event_id) == ("invalid_request_error", code, "mine")
    assert answer.output[0].content[0].text == "You said: Hello"


def test_second_answer_while_one_is_under_way():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.write("Tell me a story.")
            await dialogue.connection.response.create()
            await dialogue.until("response.text.delta")
            await dialogue.connection.response.create(event_id="mine")
            refused = await dialogue.refusal()
            await dialogue.connection.response.cancel()
            return refused, await dialogue.until("response.done")

    refused, events = asyncio.run(scenario())
    assert (refused.code, refused.event_id) == ("conversation_already_has_active_response", "mine")
    assert not only(events, "response.created")


def test_items_are_placed_retrieved_and_deleted():
    async def scenario():
        async with writing() as dialogue:
            item = dialogue.connection.conversation.item
            await item.create(item={"id": "second", **message("second")})
            await item.create(item={"id": "first", **message("first")}, previous_item_id="root")
            created = [(await dialogue.until("conversation.item.created"))[-1] for _ in range(2)]
            await item.retrieve(item_id="second")
            retrieved = await dialogue.read()
            await item.delete(item_id="second")
            return created, retrieved, await dialogue.read()

    created, retrieved, deleted = asyncio.run(scenario())
    assert [(event.item.id, event.previous_item_id) for event in created] == [("second", None), ("first", None)]
    assert (retrieved.type, retrieved.item.content[0].text) == ("conversation.item.retrieved", "second")
    assert (deleted.type, deleted.item_id) == ("conversation.item.deleted", "second")


def test_session_that_only_transcribes():
    async def scenario():
        async with client_of() as client:
            made = await client.beta.realtime.transcription_sessions.create(input_audio_transcription={"model": "whisper-1"})
        # The SDK can't open such a session without naming a model, and with one it may not be asked for; the secret says what it is.
        async with beta_client_of(made.client_secret.value) as client, client.beta.realtime.connect(model="parrot") as connection:
            dialogue = Dialogue(connection, parse)
            await dialogue.read()
            hasty = {
                "input_audio_transcription": {"model": "whisper-1"},
                "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
            }
            await connection.transcription_session.update(session=hasty)
            updated = (await dialogue.until("transcription_session.updated"))[-1]
            await dialogue.say(speech(500) + silence(500))
            return updated, await dialogue.until("conversation.item.input_audio_transcription.completed")

    updated, events = asyncio.run(scenario())
    assert updated.session.turn_detection.silence_duration_ms == 300
    assert only(events, "input_audio_buffer.speech_stopped")[0].audio_end_ms == 800
    assert events[-1].transcript == "Good morning."


def test_session_that_answers_is_not_updated_like_one_that_only_transcribes():
    async def scenario():
        async with connected() as dialogue:
            await dialogue.connection.transcription_session.update(session={"input_audio_transcription": {"model": "whisper-1"}})
            return await dialogue.refusal()

    assert asyncio.run(scenario()).type == "invalid_request_error"


def test_client_secret_opens_the_session_that_it_was_made_for():
    async def scenario():
        async with client_of() as client:
            made = await client.beta.realtime.sessions.create(model="parrot", instructions="Be brief.", modalities=["text"])
        async with connected(key=made.client_secret.value) as dialogue:
            return made, dialogue.events[0].session

    made, session = asyncio.run(scenario())
    assert made.client_secret.value.startswith("ek_")
    assert (made.instructions, session.instructions, session.modalities) == ("Be brief.", "Be brief.", ["text"])
