"""The transcript of a conversation."""

from antiphon.cli.voice.transcript import MODEL, USER, TalkTranscript, TextChunk
from antiphon.wire.realtime import server_events as events
from antiphon.wire.realtime.response import Response, StatusDetails, StatusError


def started(item_id="item_1", at_ms=0):
    return events.InputAudioBufferSpeechStarted(event_id="e", audio_start_ms=at_ms, item_id=item_id)


def stopped(item_id="item_1", at_ms=1000):
    return events.InputAudioBufferSpeechStopped(event_id="e", audio_end_ms=at_ms, item_id=item_id)


def committed(item_id="item_1"):
    return events.InputAudioBufferCommitted(event_id="e", item_id=item_id)


def understood(text, item_id="item_1"):
    usage = events.DurationUsage(seconds=1)
    return events.InputAudioTranscriptionCompleted(event_id="e", item_id=item_id, content_index=0, transcript=text, usage=usage)


def partly(text, item_id="item_1"):
    return events.InputAudioTranscriptionDelta(event_id="e", item_id=item_id, delta=text)


def created(response_id="resp_1"):
    return events.ResponseCreated(event_id="e", response=Response(id=response_id, status="in_progress"))


def said(text, response_id="resp_1"):
    place = {"response_id": response_id, "item_id": "item_2", "output_index": 0, "content_index": 0}
    return events.ResponseOutputAudioTranscriptDelta(event_id="e", delta=text, **place)


def sounded(pcm, response_id="resp_1"):
    place = {"response_id": response_id, "item_id": "item_2", "output_index": 0, "content_index": 0}
    return events.ResponseOutputAudioDelta(event_id="e", delta=pcm, **place)


def done(status="completed", response_id="resp_1", **details):
    told = StatusDetails(type=status, **details) if details else None
    return events.ResponseDone(event_id="e", response=Response(id=response_id, status=status, status_details=told))


def noted(*happened, record=None):
    """A record of events that came a second apart, and what there was to show."""
    record = record or TalkTranscript()
    return record, [words for second, event in enumerate(happened) for words in record.apply(event, float(second))]


def test_times_count_from_the_end_of_the_speech():
    record, _shown = noted(
        started(), stopped(), committed(), created(), partly("Hi"), understood("Hi"), said("Yes"), sounded(b"\0\0"), done()
    )
    assert record.turns[0].latencies_ms == {"transcript": 4000.0, "first_token": 5000.0, "first_audio": 6000.0, "answered": 7000.0}


def test_words_are_shown_once_whether_they_came_in_pieces_or_whole():
    _record, shown = noted(stopped(), partly("Hi "), partly("there."), understood("Hi there."))
    assert shown == [TextChunk(USER, "Hi "), TextChunk(USER, "there."), TextChunk(USER, "", is_last=True)]
    _record, shown = noted(stopped(), understood("Hi there."))
    assert shown == [TextChunk(USER, "Hi there.", is_last=True)]


def test_speech_without_words_is_said_to_be_so():
    record, shown = noted(stopped(), understood(" "))
    assert shown == [TextChunk(USER, "(nothing that could be understood)", is_last=True)]
    assert record.turns[0].transcript == ""


def test_speech_that_was_not_transcribed_says_why():
    error = events.TranscriptionError(message="Too noisy.")
    failed = events.InputAudioTranscriptionFailed(event_id="e", item_id="item_1", content_index=0, error=error)
    record, shown = noted(stopped(), failed)
    assert shown == [TextChunk(USER, "(not understood: Too noisy.)", is_last=True)]
    assert record.turns[0].is_transcribed


def test_an_answer_belongs_to_the_turn_before_it():
    record, shown = noted(
        stopped(),
        created(),
        said("On"),
        done("cancelled"),
        stopped("item_3"),
        created("resp_2"),
        said("Two", "resp_2"),
        done(response_id="resp_2"),
    )
    assert [(turn.answer, turn.status) for turn in record.turns] == [("On", "cancelled"), ("Two", "completed")]
    assert TextChunk(MODEL, " (interrupted)", is_last=True) in shown


def test_a_failure_has_its_reason():
    record, _shown = noted(stopped(), created(), done("failed", error=StatusError(message="It broke.")))
    assert (record.turns[0].status, record.turns[0].reason) == ("failed", "It broke.")
    record, _shown = noted(stopped(), created(), done("incomplete", reason="max_output_tokens"))
    assert record.turns[0].reason == "max_output_tokens"


def test_words_may_come_while_someone_still_speaks():
    record, shown = noted(started(), partly("Hi "), stopped(), partly("there."), understood("Hi there."))
    assert [words.text for words in shown] == ["Hi ", "there.", ""]
    assert (len(record.turns), record.turns[0].latencies_ms["transcript"]) == (1, 2000.0)


def test_speech_that_has_not_ended_is_answered_by_nobody():
    record, _shown = noted(stopped(), started("item_3"), created(), said("Hi"))
    assert [turn.answer for turn in record.turns] == ["Hi", ""]
    assert record.turns[1].latencies_ms["first_token"] is None


def test_a_turn_that_the_client_commits_has_no_end_of_speech():
    record, _shown = noted(committed(), created(), done())
    assert (record.turns[0].speech_end_ms, record.turns[0].speech_end_s) == (None, 0.0)


def test_sound_is_kept_where_it_is_wanted():
    happened = (stopped(), created(), sounded(b"\1\0"), sounded(b"\2\0"), done())
    assert bytes(noted(*happened)[0].turns[0].pcm) == b"\1\0\2\0"
    record, _shown = noted(*happened, record=TalkTranscript(keeps_audio=False))
    assert (record.turns[0].pcm, record.turns[0].first_audio_s) == (b"", 2.0)


def test_a_turn_is_told_in_plain_values():
    record = TalkTranscript()
    record.source = "a.wav"
    noted(started(at_ms=40), stopped(at_ms=900), created(), sounded(bytes(4800)), done(), record=record)
    told = record.turns[0].to_dict()
    assert (told["source"], told["speech_start_ms"], told["speech_end_ms"], told["answer_ms"]) == ("a.wav", 40, 900, 100)
    assert told["after_speech_ms"]["transcript"] is None


def test_events_of_nobody_are_passed_over():
    record, shown = noted(understood("?"), partly("?"), created(), said("?"), sounded(b"\0\0"), done())
    assert (record.turns, shown) == ([], [])
