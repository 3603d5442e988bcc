"""MiniCPM-o server events match their documentation."""

import json

from hypothesis import given, strategies as st

from antiphon.wire.codec.types import Unknown, encode
from antiphon.wire.minicpmo import server_events as events


def written(event):
    return json.loads(events.encode_server(event))


def test_a_queue_of_unknown_length_in_time_leaves_the_time_out():
    queued = events.SessionQueued(position=2, ticket_id="q_1", queue_length=3)
    assert written(queued) == {"type": "session.queued", "position": 2, "ticket_id": "q_1", "queue_length": 3}


def test_updates_have_the_same_fields():
    fields = {"position": 1, "estimated_wait_s": 4.5, "ticket_id": "q_1", "queue_length": 2}
    assert written(events.SessionQueueUpdate(**fields)) == {"type": "session.queue_update", **fields}


def test_sound_is_base64():
    delta = events.OutputDelta(kind="audio", session_id="s", response_id="r", audio=b"\0\1\2\3", metrics={})
    assert written(delta) == {
        "type": "response.output.delta",
        "kind": "audio",
        "session_id": "s",
        "response_id": "r",
        "audio": "AAECAw==",
        "metrics": {},
    }


@given(sound=st.binary(min_size=1, max_size=400), text=st.text(), metrics=st.dictionaries(st.text(), st.integers(-9, 9)))
def test_a_delta_with_sound_is_written_as_any_event_is(sound, text, metrics):
    delta = events.OutputDelta(kind="audio", session_id="s", response_id=text, audio=sound, metrics=metrics, server_send_ts=1.5)
    assert events.encode_server(delta) == encode(delta)


def test_an_answer_without_sound_says_so():
    done = events.ResponseDone(session_id="s", response_id="r", input_id="i", text="Hi", audio=None, reason="turn_end", metrics={})
    assert written(done)["audio"] is None


def test_what_is_written_is_read_back():
    closed = events.SessionClosed(session_id=None, reason="backend_error", diagnostic=events.Diagnostic(message="gone"))
    assert events.decode_server(events.encode_server(closed)) == closed


def test_what_is_not_known_is_read_all_the_same():
    read = events.decode_server(b'{"type":"response.think.delta","text":"hm"}')
    assert isinstance(read, Unknown)
    assert read.type == "response.think.delta"
