"""The machine before a Realtime session: it tells the place in the queue, and lets the session begin with its worker."""

import itertools

from msgspec import structs

from antiphon.engine_api import events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ServerError
from antiphon.protocols.realtime.queued_session import QueuedRealtimeSession
from antiphon.protocols.realtime.settings import RealtimeSessionConfig
from antiphon.protocols.session import Close, FromClient, FromEngine, Hangup, Send, Shutdown, WakeAt
from antiphon.wire.realtime.client_events import InputAudioBufferAppend, InputAudioBufferClear

CONFIG = RealtimeSessionConfig(model="m", capabilities=Capabilities(tools=True), max_duration_s=60)
FIRST, SECOND = (engine_events.QueueUpdate(id="q_1", position=each, queue_length=2, wait_s=each * 20.04) for each in (1, 2))


def waiting():
    numbers = itertools.count()
    session = QueuedRealtimeSession(CONFIG, lambda prefix: f"{prefix}_{next(numbers)}")
    assert session.handle(FromClient(CONFIG, 100.0)) == []
    return session


def types(effects):
    return [effect.event.type for effect in effects if isinstance(effect, Send)]


def test_the_place_is_told_whenever_the_engine_tells_it():
    session = waiting()
    (sent,) = session.handle(FromEngine((SECOND,), 101.0))
    event = sent.event
    assert (event.type, event.position, event.queue_length, event.ticket_id) == ("antiphon.queued", 2, 2, "q_1")
    assert event.estimated_wait_s == 40.1 and event.event_id
    assert types(session.handle(FromEngine((FIRST,), 102.0))) == ["antiphon.queued"]


def test_the_session_begins_with_its_worker_and_its_time_does_too():
    session = waiting()
    session.handle(FromEngine((FIRST,), 101.0))
    effects = session.handle(FromEngine((FIRST, engine_events.WorkerAssigned("q_1")), 500.0))
    assert types(effects) == ["antiphon.queued", "session.created"]
    assert [effect.at for effect in effects if isinstance(effect, WakeAt)] == [560.0]
    assert session.handle(FromClient(CONFIG, 501.0)) == [] and session.end_reason is None


def test_a_worker_that_is_there_before_the_client_begins_no_second_session():
    numbers = itertools.count()
    session = QueuedRealtimeSession(CONFIG, lambda prefix: f"{prefix}_{next(numbers)}")
    assert types(session.handle(FromEngine((engine_events.WorkerAssigned("q_1"),), 100.0))) == ["session.created"]
    assert session.handle(FromClient(CONFIG, 100.0)) == []


def test_what_the_client_sends_meanwhile_is_handled_in_the_session():
    session = waiting()
    assert session.handle(FromClient(InputAudioBufferClear(event_id="e"), 101.0)) == []
    effects = session.handle(FromEngine((engine_events.WorkerAssigned("q_1"),), 102.0))
    assert types(effects) == ["session.created", "input_audio_buffer.cleared"]


def test_the_microphone_of_a_call_is_not_heard_while_it_waits_and_that_is_no_error():
    for has_output_buffer in (True, False):
        session = QueuedRealtimeSession(structs.replace(CONFIG, has_output_buffer=has_output_buffer), lambda prefix: prefix)
        said = session.handle(FromClient(InputAudioBufferAppend(audio=b"sound"), 101.0))
        assert types(said) == ([] if has_output_buffer else ["error"])
        begun = session.handle(FromEngine((engine_events.WorkerAssigned("q_1"),), 102.0))
        assert types(begun) == ["session.created"]


def test_without_a_worker_to_come_the_client_is_told_and_closed():
    for event in (engine_events.EngineError(message="No.", code="worker_busy"), engine_events.EngineLost(message="No.", code="queue_full")):
        session = waiting()
        sent, closed = session.handle(FromEngine((event, FIRST), 101.0))
        assert sent.event.error.code == closed.error.code == event.code and session.end_reason == "no_worker"
        assert session.handle(FromEngine((engine_events.WorkerAssigned("q_1"),), 102.0)) == []


def test_it_ends_when_the_client_leaves_or_the_server_stops():
    session = waiting()
    assert session.handle(Hangup(101.0)) == [Close(None)] and session.end_reason == "client_left"
    session, error = waiting(), ServerError("The server stops.", code="server_shutting_down")
    assert session.handle(Shutdown(error, 101.0)) == [Close(error)] and session.end_reason == "halted"
