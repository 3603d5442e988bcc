"""The transcript of a MiniCPM-o session, also from servers that send less than antiphon."""

from antiphon.cli.voice.render import format_latencies, format_queue_position
from antiphon.cli.voice.transcript import MODEL, DuplexQueuePosition, DuplexTranscript, TextChunk
from antiphon.wire.minicpmo.media import to_floats
from antiphon.wire.minicpmo.server_events import OutputDelta, ResponseDone, SessionQueued, SessionQueueUpdate

PCM = b"\x01\x10" * 2400


def delta(kind, response_id="resp_1", **more):
    return OutputDelta(kind=kind, session_id="sess_1", response_id=response_id, metrics={}, **more)


def new_transcript():
    transcript = DuplexTranscript()
    transcript.source, transcript.speech_end_s = "one.wav", 10.0
    return transcript


def test_a_listen_ends_an_answer():
    transcript = new_transcript()
    assert transcript.apply(delta("listen", text=""), 10.1) == ()
    assert (transcript.is_listening, transcript.is_speaking) == (True, False)
    assert transcript.apply(delta("text", text="Hi"), 10.5) == (TextChunk(MODEL, "Hi"),)
    assert transcript.apply(delta("audio", audio=to_floats(PCM)), 10.6) == ()
    assert transcript.is_speaking
    assert transcript.apply(delta("listen"), 11.0) == (TextChunk(MODEL, "", is_last=True),)
    (answer,) = transcript.answers
    assert (answer.text, bytes(answer.pcm)) == ("Hi", PCM)
    assert answer.latencies_ms == {"first_text": 500.0, "first_audio": 600.0, "ended": 1000.0}
    assert format_latencies(answer.latencies_ms) == "speech end -> first text 500, first audio 600 ms"


def test_an_answer_that_was_cut_off_says_so():
    transcript = new_transcript()
    transcript.apply(delta("text", text="Once"), 10.5)
    assert transcript.apply(delta("listen", interrupted=True), 10.6) == (TextChunk(MODEL, " (interrupted)", is_last=True),)
    assert transcript.answers[0].to_dict()["interrupted"] is True


def test_another_response_is_another_answer():
    transcript = new_transcript()
    transcript.apply(delta("text", text="One."), 10.5)
    transcript.apply(delta("text", "resp_2", text="Two."), 10.6)
    assert [answer.text for answer in transcript.answers] == ["One.", "Two."]


def test_an_answer_in_chat_may_come_all_at_once():
    transcript = new_transcript()
    whole = ResponseDone(
        session_id="sess_1", response_id="resp_1", input_id="i", text="Hi", audio=to_floats(PCM), reason="turn_end", metrics={}
    )
    assert transcript.apply(whole, 10.5) == (TextChunk(MODEL, "Hi"), TextChunk(MODEL, "", is_last=True))
    assert (transcript.answers[0].reason, bytes(transcript.answers[0].pcm)) == ("turn_end", PCM)


def test_places_are_noted_with_the_wait_where_it_is_known():
    transcript = new_transcript()
    transcript.apply(SessionQueued(position=2, ticket_id="q_1", queue_length=2), 1)
    transcript.apply(SessionQueueUpdate(position=1, ticket_id="q_1", queue_length=1, estimated_wait_s=12.5), 2)
    assert transcript.queue_positions == [DuplexQueuePosition(2, 2, None), DuplexQueuePosition(1, 1, 12.5)]
    assert [format_queue_position(place) for place in transcript.queue_positions] == [
        "waits: number 2 of 2",
        "waits: number 1 of 1, about 12 s",
    ]
