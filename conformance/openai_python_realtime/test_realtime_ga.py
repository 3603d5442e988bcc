"""openai-python's `client.realtime` converses with antiphon: the dialect of general availability."""

import asyncio
import base64
import contextlib
import json
import os
from pathlib import Path
from typing import Annotated

import pytest
from dialogue import WEATHER, Dialogue, client_of, kinds, message, only, seconds, silence, speech
from openai.types.realtime import RealtimeServerEvent
from pydantic import Field, TypeAdapter
from websockets.exceptions import InvalidStatus

QUESTION = Path(os.environ["ANTIPHON_QUESTION"]).read_bytes() if "ANTIPHON_QUESTION" in os.environ else b""
TYPES = TypeAdapter(Annotated[RealtimeServerEvent, Field(discriminator="type")])
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SPOKEN_TURN = {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "server_vad"}, "transcription": {"model": "whisper-1"}}}}


@contextlib.asynccontextmanager
async def connected(session=None, key="none", **more):
    """A dialogue in a session that is as it was asked to be."""
    async with client_of(key) as client, client.realtime.connect(**(more or {"model": "parrot"})) as connection:
        dialogue = Dialogue(connection, TYPES.validate_json)
        assert (await dialogue.read()).type == "session.created"
        if session is not None:
            await connection.session.update(session=session)
            assert (await dialogue.read()).type == "session.updated"
        yield dialogue


def writing(**more):
    return connected({"type": "realtime", "output_modalities": ["text"], **more})


def test_session_is_told_whole():
    async def scenario():
        async with connected() as dialogue:
            created = dialogue.events[0].session
            await dialogue.connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
            return created, (await dialogue.read()).session

    created, updated = asyncio.run(scenario())
    assert created.id.startswith("sess_")
    assert (created.model, created.output_modalities) == ("parrot", ["audio"])
    assert (created.audio.input.format.rate, created.audio.input.turn_detection.type) == (24_000, "server_vad")
    assert updated == created.model_copy(update={"instructions": "Be brief."})


def test_text_turn():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.write("Hello")
            await dialogue.connection.response.create(response={"metadata": {"topic": "greeting"}})
            return await dialogue.until("response.done")

    events = asyncio.run(scenario())
    assert kinds(events) == [
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    response = events[-1].response
    assert "".join(event.delta for event in only(events, "response.output_text.delta")) == "You said: Hello"
    assert (response.status, response.output[0].content[0].text) == ("completed", "You said: Hello")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 0
    assert events[2].response.metadata == response.metadata == {"topic": "greeting"}


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
            await dialogue.connection.response.create()
            return called, await dialogue.until("response.done")

    called, answered = asyncio.run(scenario())
    [done] = only(called, "response.function_call_arguments.done")
    assert (done.name, done.call_id, json.loads(done.arguments)) == ("get_weather", "call_w", {"city": "Paris"})
    assert "".join(event.delta for event in only(called, "response.function_call_arguments.delta")) == done.arguments
    assert [item.type for item in called[-1].response.output] == ["function_call"]
    assert answered[-1].response.output[0].content[0].text == "The tool says sunny"


def test_spoken_turn():
    async def scenario():
        async with connected(SPOKEN_TURN) as dialogue:
            await dialogue.say(speech(1000) + silence(1000))
            return await dialogue.all_of("response.done", "conversation.item.input_audio_transcription.completed")

    events = asyncio.run(scenario())
    of_the_turn = [kind for kind in kinds(events) if not kind.startswith("conversation.item.input_audio_transcription")]
    assert of_the_turn[:7] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
    ]
    started, stopped = events[0], events[1]
    [heard] = only(events, "conversation.item.input_audio_transcription.completed")
    assert (started.audio_start_ms, stopped.audio_end_ms) == (0, 1500)
    assert (heard.item_id, heard.transcript) == (started.item_id, "Good morning.")
    [done] = only(events, "response.done")
    said = done.response.output[0].content[0]
    assert (said.type, said.transcript, said.audio) == ("output_audio", "You said: Good morning.", None)
    assert seconds(only(events, "response.output_audio.delta")) > 1
    assert done.response.usage.input_token_details.audio_tokens > 0


@pytest.mark.skipif(not QUESTION, reason="the server can't listen and speak")
def test_question_of_a_person_is_answered_aloud_by_a_real_model():
    async def scenario():
        async with connected({**SPOKEN_TURN, "max_output_tokens": 40}, model=os.environ["ANTIPHON_MODEL"]) as dialogue:
            await dialogue.say(QUESTION + silence(1000))
            return await dialogue.all_of("conversation.item.input_audio_transcription.completed", "response.done")

    events = asyncio.run(scenario())
    [heard] = only(events, "conversation.item.input_audio_transcription.completed")
    assert "clubs" in heard.transcript.lower()
    [done] = only(events, "response.done")
    assert done.response.status in ("completed", "incomplete"), "a small model may go on for longer than it is let"
    assert done.response.usage.output_token_details.audio_tokens > 0
    said = "".join(event.delta for event in only(events, "response.output_audio_transcript.delta"))
    assert said == done.response.output[0].content[0].transcript != ""
    assert seconds(only(events, "response.output_audio.delta")) > 0.5


def test_speech_cuts_off_the_answer_that_is_playing():
    async def scenario():
        async with connected(SPOKEN_TURN) as dialogue:
            await dialogue.write("Tell me a story.")
            await dialogue.connection.response.create()
            delta = (await dialogue.until("response.output_audio.delta"))[-1]
            await dialogue.say(speech(500))
            cut = await dialogue.until("response.done")
            await dialogue.connection.conversation.item.truncate(item_id=delta.item_id, content_index=0, audio_end_ms=50)
            truncated = (await dialogue.until("conversation.item.truncated"))[-1]
            await dialogue.connection.conversation.item.retrieve(item_id=delta.item_id)
            item = (await dialogue.until("conversation.item.retrieved"))[-1].item
            await dialogue.say(silence(1000))
            return cut, truncated, item, (await dialogue.until("response.done"))[-1].response

    cut, truncated, item, answer = asyncio.run(scenario())
    done = cut[-1].response
    assert (done.status, done.status_details.type, done.status_details.reason) == ("cancelled", "cancelled", "turn_detected")
    assert done.output[0].status == "incomplete"
    assert kinds(cut)[-6:-1] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
    ]
    assert (truncated.item_id, truncated.audio_end_ms) == (item.id, 50)
    assert not item.content[0].transcript
    assert answer.output[0].content[0].transcript == "You said: Good morning."


def test_turn_committed_by_hand():
    async def scenario():
        async with writing(audio={"input": {"turn_detection": None}}) as dialogue:
            await dialogue.say(speech(300))
            await dialogue.connection.input_audio_buffer.clear()
            await dialogue.until("input_audio_buffer.cleared")
            await dialogue.connection.input_audio_buffer.commit(event_id="too_soon")
            refused = await dialogue.refusal()
            await dialogue.say(speech(300))
            await dialogue.connection.input_audio_buffer.commit()
            committed = await dialogue.until("conversation.item.done")
            return refused, committed, await dialogue.answer()

    refused, committed, answer = asyncio.run(scenario())
    assert (refused.code, refused.event_id) == ("input_audio_buffer_commit_empty", "too_soon")
    assert kinds(committed) == ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
    assert committed[1].item.content[0].type == "input_audio"
    assert answer.output[0].content[0].text == "You said: Good morning."


def test_response_beside_the_conversation():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.write("Tell me a story.")
            await dialogue.connection.response.create()
            story = (await dialogue.until("response.output_text.delta"))[-1].response_id
            aside = {"conversation": "none", "metadata": {"for": "the log"}, "input": [message("Aside")]}
            await dialogue.connection.response.create(response=aside)
            beside = (await dialogue.until("response.done"))[-1].response
            await dialogue.connection.response.cancel(response_id=story)
            return beside, (await dialogue.until("response.done"))[-1].response, dialogue.events

    beside, story, events = asyncio.run(scenario())
    assert (beside.status, beside.conversation_id, beside.metadata) == ("completed", None, {"for": "the log"})
    assert beside.output[0].content[0].text == "You said: Aside"
    assert beside.output[0].id not in [event.item.id for event in only(events, "conversation.item.added")]
    assert (story.status, story.status_details.reason) == ("cancelled", "client_cancelled")
    assert story.conversation_id is not None


def test_items_are_placed_retrieved_and_deleted():
    async def scenario():
        async with writing() as dialogue:
            item = dialogue.connection.conversation.item
            for id, before in (("second", None), ("first", "root"), ("third", "second")):
                await item.create(item={"id": id, **message(id)}, **({"previous_item_id": before} if before else {}))
            added = only(
                await dialogue.until("conversation.item.done", where=lambda event: event.item.id == "third"), "conversation.item.added"
            )
            await item.retrieve(item_id="second")
            retrieved = await dialogue.read()
            await item.delete(item_id="second")
            return added, retrieved, await dialogue.read()

    added, retrieved, deleted = asyncio.run(scenario())
    assert [(event.item.id, event.previous_item_id) for event in added] == [("second", None), ("first", None), ("third", "second")]
    assert retrieved.item.content[0].text == "second"
    assert (deleted.type, deleted.item_id) == ("conversation.item.deleted", "second")


REFUSED = {
    "item_delete_invalid_item_id": lambda connection: connection.conversation.item.delete(item_id="nothing", event_id="mine"),
    "item_retrieve_invalid_item_id": lambda connection: connection.conversation.item.retrieve(item_id="nothing", event_id="mine"),
    "item_create_invalid_previous_item_id": lambda connection: connection.conversation.item.create(
        item=message("x"), previous_item_id="nothing", event_id="mine"
    ),
    "response_cancel_not_active": lambda connection: connection.response.cancel(event_id="mine"),
    "input_audio_buffer_commit_empty": lambda connection: connection.input_audio_buffer.commit(event_id="mine"),
    "missing_required_parameter": lambda connection: connection.session.update(session={"instructions": "x"}, event_id="mine"),
    "invalid_value": lambda connection: connection.session.update(
        session={"type": "realtime", "output_modalities": ["text", "audio"]}, event_id="mine"
    ),
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


def test_result_of_a_call_that_nobody_made():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.connection.conversation.item.create(
                item={"type": "function_call_output", "call_id": "nothing", "output": "sunny"}, event_id="mine"
            )
            return await dialogue.refusal()

    refused = asyncio.run(scenario())
    assert (refused.type, refused.event_id) == ("invalid_request_error", "mine")
    assert "nothing" in refused.message


def test_second_answer_while_one_is_under_way():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.write("Tell me a story.")
            await dialogue.connection.response.create()
            first = (await dialogue.until("response.output_text.delta"))[-1].response_id
            await dialogue.connection.response.create(event_id="mine")
            refused = await dialogue.refusal()
            await dialogue.connection.response.cancel()
            return first, refused, await dialogue.until("response.done")

    first, refused, events = asyncio.run(scenario())
    assert (refused.code, refused.event_id) == ("conversation_already_has_active_response", "mine")
    assert first in refused.message
    assert events[-1].response.id == first
    assert not only(events, "response.created")


def test_answer_that_fails():
    async def scenario():
        async with writing() as dialogue:
            await dialogue.write("Please break midway.")
            return await dialogue.answer()

    failed = asyncio.run(scenario())
    assert (failed.status, failed.status_details.type) == ("failed", "failed")
    assert failed.output[0].content[0].text == "So far so good"


def test_session_that_only_transcribes():
    async def scenario():
        probable = ["item.input_audio_transcription.logprobs"]
        session = {"type": "transcription", "include": probable, "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
        async with connected(session, extra_query={"intent": "transcription"}) as dialogue:
            await dialogue.say(speech(500) + silence(1000))
            return await dialogue.all_of("conversation.item.input_audio_transcription.completed", "conversation.item.done")

    events = asyncio.run(scenario())
    [heard] = only(events, "conversation.item.input_audio_transcription.completed")
    assert heard.transcript == "Good morning."
    assert "".join(event.delta for event in only(events, "conversation.item.input_audio_transcription.delta")) == heard.transcript
    assert "".join(likely.token for likely in heard.logprobs) == heard.transcript
    assert not only(events, "response.created")


def test_turn_that_cannot_be_transcribed_and_one_of_two_speakers():
    async def scenario():
        by_hand = {"type": "realtime", "audio": {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}}}
        async with connected(by_hand) as dialogue:
            for _ in range(5):
                await dialogue.say(speech(200))
                await dialogue.connection.input_audio_buffer.commit()
            both = ("conversation.item.input_audio_transcription.failed", "conversation.item.input_audio_transcription.segment")
            return await dialogue.all_of(*both)

    events = asyncio.run(scenario())
    [failed] = only(events, "conversation.item.input_audio_transcription.failed")
    segment = only(events, "conversation.item.input_audio_transcription.segment")[0]
    fourth, fifth = only(events, "input_audio_buffer.committed")[3:]
    assert (failed.item_id, failed.error.code, failed.error.message) == (fourth.item_id, "transcription_failed", "It was too noisy.")
    assert (segment.item_id, segment.speaker, segment.text, segment.start) == (fifth.item_id, "A", "Hello.", 0)


def test_person_who_says_nothing_is_spoken_to():
    async def scenario():
        patient = {"type": "server_vad", "idle_timeout_ms": 5000}
        async with writing(audio={"input": {"turn_detection": patient}}) as dialogue:
            await dialogue.write("Hello")
            await dialogue.answer()
            await dialogue.say(silence(1000))
            return await dialogue.until("response.done")

    events = asyncio.run(scenario())
    timed_out = only(events, "input_audio_buffer.timeout_triggered")[0]
    assert timed_out.item_id == only(events, "input_audio_buffer.committed")[0].item_id
    assert events[-1].response.status == "completed"


def test_telephone_sound():
    async def scenario():
        format = {"type": "audio/pcmu"}
        audio = {"input": {"format": format, "turn_detection": {"type": "server_vad"}}, "output": {"format": format}}
        async with connected({"type": "realtime", "audio": audio}) as dialogue:
            await dialogue.say(b"\x00\x80" * 4000 + b"\xff" * 8000)  # a second of full scale, one of silence
            return await dialogue.until("response.done")

    events = asyncio.run(scenario())
    assert (events[0].audio_start_ms, events[1].audio_end_ms) == (0, 1500)
    spoken = b"".join(base64.b64decode(event.delta) for event in only(events, "response.output_audio.delta"))
    assert len(spoken) == 8 * 60 * len("You said: Good morning.")
    assert events[-1].response.audio.output.format.type == "audio/pcmu"


def test_picture():
    async def scenario():
        async with writing() as dialogue:
            picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
            look = message("Look.")
            await dialogue.connection.conversation.item.create(item=look | {"content": [*look["content"], picture]})
            added = (await dialogue.until("conversation.item.added"))[-1].item
            return added, await dialogue.answer()

    added, answer = asyncio.run(scenario())
    assert [part.type for part in added.content] == ["input_text", "input_image"]
    assert answer.output[0].content[0].text == "You said: Look."


def test_answer_is_retrieved_while_it_is_said():
    async def scenario():
        async with connected() as dialogue:
            await dialogue.write("Tell me a story.")
            await dialogue.connection.response.create()
            said = (await dialogue.until("response.output_audio.delta"))[-1].item_id
            await dialogue.connection.conversation.item.retrieve(item_id=said)
            return said, (await dialogue.until("conversation.item.retrieved"))[-1].item

    said, item = asyncio.run(scenario())
    assert (item.id, item.status) == (said, "in_progress")


def test_mcp_server_that_is_not_there():
    async def scenario():
        async with connected() as dialogue:
            server = {"type": "mcp", "server_label": "notes", "server_url": "http://127.0.0.1:9/mcp"}
            await dialogue.connection.session.update(session={"type": "realtime", "tools": [server]})
            return await dialogue.all_of("mcp_list_tools.failed", "conversation.item.done")

    events = asyncio.run(scenario())
    [item] = [event.item for event in only(events, "conversation.item.done")]
    assert (item.type, item.server_label, item.tools) == ("mcp_list_tools", "notes", [])


def test_client_secret_opens_the_session_that_it_was_made_for():
    async def scenario():
        async with client_of() as client:
            session = {"type": "realtime", "model": "parrot", "instructions": "Be brief.", "output_modalities": ["text"]}
            secret = await client.realtime.client_secrets.create(session=session)
        async with connected(key=secret.value, model="parrot") as dialogue:
            return secret, dialogue.events[0].session

    secret, session = asyncio.run(scenario())
    assert secret.value.startswith("ek_")
    assert (secret.session.instructions, session.instructions, session.output_modalities) == ("Be brief.", "Be brief.", ["text"])


def test_model_that_is_not_there():
    async def scenario():
        async with connected(model="nothing"):
            pass

    with pytest.raises(InvalidStatus, match="404"):
        asyncio.run(scenario())


def almanac(**fields):
    return [{"type": "mcp", "server_label": "almanac", "server_url": os.environ["MCP_URL"], "require_approval": "never", **fields}]


def test_a_call_of_an_mcp_servers_tool():
    async def scenario():
        async with writing(tools=almanac()) as dialogue:
            await dialogue.until("mcp_list_tools.completed")
            await dialogue.write("forecast?")
            await dialogue.connection.response.create()
            return await dialogue.until("response.done")

    events = asyncio.run(scenario())
    call, answer = events[-1].response.output
    assert (call.type, call.name, call.output) == ("mcp_call", "get_forecast", "rain in Oslo tomorrow")
    assert answer.content[0].text == "The tool says rain in Oslo tomorrow"
    assert [kind for kind in kinds(events) if "mcp_call" in kind] == [
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]


@pytest.mark.parametrize(("approve", "said"), [(True, "The tool says a table in Oslo is booked"), (False, "too late")])
def test_a_call_of_an_mcp_servers_tool_that_must_be_approved(approve, said):
    async def scenario():
        async with writing(tools=almanac(require_approval="always")) as dialogue:
            await dialogue.write("book a table")
            await dialogue.connection.response.create()
            request = (await dialogue.until("response.done"))[-1].response.output[-1]
            answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve, "reason": "It is too late."}
            await dialogue.connection.conversation.item.create(item=answer)
            return request, (await dialogue.until("response.done"))[-1].response

    request, response = asyncio.run(scenario())
    assert (request.type, request.name) == ("mcp_approval_request", "book_table")
    assert said in response.output[-1].content[0].text
