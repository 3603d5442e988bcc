"""Which events of a recording are sent again, and when; and who said what in it."""

import base64

import msgspec
import pytest

from antiphon.audio import encode_ulaw, wav_file
from antiphon.records import SessionRecord
from antiphon.runtime.recording.files import EventLine
from antiphon.runtime.recording.transcript import read_turns, render_transcript
from antiphon.runtime.replay.steps import DownloadedRecording, IdMapping
from antiphon.wire.minicpmo.media import to_floats

PCM = b"\x00\x10" * 4
JPEG = b"\xff\xd8\xffpicture"

RECORD = SessionRecord(
    id="sess_1", tenant="", key_id=None, protocol="realtime", mode="conversation", model="parrot", created_at=1, duration_ms=2500,
    reason="left",
)  # fmt: skip


def recorded(*events, **record):
    """A recording of these events, as pairs of direction and event, half a second apart."""
    lines = [EventLine(seq, seq / 2, direction, event) for seq, (direction, event) in enumerate(events, start=1)]
    files = {
        "meta.json": msgspec.json.encode(msgspec.structs.replace(RECORD, **record)),
        "events.jsonl": b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + b'{"torn',
        "in.wav": wav_file(PCM, 24_000),
        "frames/000001.jpg": JPEG,
    }
    return DownloadedRecording(files)


def media(form="pcm"):
    return {"$media": "in.wav", "offset": 2, "bytes": 4, "form": form}


CREATED = ("out", {"type": "session.created", "session": {"id": "sess_1"}})


def test_only_what_the_client_said_is_said_again_after_what_had_come_before():
    session = recorded(CREATED, ("in", {"type": "a"}), ("out", {"type": "response.done"}), ("out", {"type": "x"}), ("in", {"type": "b"}))
    assert [(step.event["type"], step.at_s, step.milestones_before) for step in session.steps()] == [
        ("a", 0.5, {"session.created": 1}),
        ("b", 2.0, {"session.created": 1, "response.done": 1}),
    ]


@pytest.mark.parametrize(
    ("protocol", "form", "written"),
    [
        ("realtime", "pcm", PCM[2:6]),
        ("realtime", "pcmu", encode_ulaw(PCM[2:6])),
        ("minicpmo", "float32", to_floats(PCM[2:6])),
        ("minicpmo", "pcm", to_floats(PCM[2:6])),
    ],
)
def test_sound_is_written_as_it_was_on_the_wire(protocol, form, written):
    session = recorded(CREATED, ("in", {"type": "a", "audio": media(form)}), protocol=protocol)
    assert next(session.steps()).event["audio"] == base64.b64encode(written).decode()


@pytest.mark.parametrize(
    "said",
    [{"$media": 7}, {"$media": "in.wav"}, {"$media": "../x", "bytes": 1, "form": "pcm"}, {"$media": "in.wav", "bytes": -1, "form": "pcm"}],
)
def test_what_a_client_said_that_only_looks_like_media_is_said_as_it_was(said):
    assert next(recorded(CREATED, ("in", {"type": "a", "x": said})).steps()).event["x"] == said


@pytest.mark.parametrize("form", ["jpeg", "png", "gif", "webp"])
def test_pictures_come_with_it(form):
    shown = {"$media": "frames/000001.jpg", "bytes": len(JPEG), "form": form}
    session = recorded(CREATED, ("in", {"type": "a", "input": {"video_frames": [shown]}}), protocol="minicpmo")
    assert next(session.steps()).event["input"] == {"video_frames": [base64.b64encode(JPEG).decode()]}


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({}, "/v1/realtime?model=parrot&record=1"),
        ({"mode": "transcription"}, "/v1/realtime?intent=transcription&record=1"),
        ({"protocol": "minicpmo", "mode": "audio"}, "/v1/realtime?model=parrot&mode=audio&record=1"),
    ],
)
def test_the_same_kind_of_session_is_opened(record, path):
    assert recorded(CREATED, **record).session_path(None, is_recorded=True) == path


def added(item_id):
    return {"type": "conversation.item.added", "item": {"id": item_id}}


def test_ids_of_then_become_ids_of_now_by_their_order():
    ids = IdMapping([EventLine(1, 0, "out", added("item_a")), EventLine(2, 0, "out", added("item_b"))])
    ids.on_server_event(added("item_1"))
    said = {"type": "conversation.item.delete", "item_id": "item_a"}
    assert ids.map_event(said)["item_id"] == "item_1"
    assert ids.map_event(said | {"item_id": "item_b"})["item_id"] == "item_b"
    ids.on_server_event(added("item_2"))
    assert ids.map_event(said | {"item_id": "item_b"})["item_id"] == "item_2"
    assert ids.map_event(said | {"item_id": "mine"})["item_id"] == "mine"


SPOKEN = (
    CREATED,
    ("out", {"type": "input_audio_buffer.speech_started", "item_id": "item_1"}),
    ("out", {"type": "input_audio_buffer.speech_stopped", "item_id": "item_1"}),
    ("out", {"type": "input_audio_buffer.committed", "item_id": "item_1"}),
    ("out", {"type": "response.created", "response": {"id": "resp_1"}}),
    ("out", {"type": "response.output_audio_transcript.delta", "response_id": "resp_1", "delta": "A "}),
    ("out", {"type": "conversation.item.input_audio_transcription.completed", "item_id": "item_1", "transcript": "What is it?"}),
    ("out", {"type": "response.output_audio_transcript.delta", "response_id": "resp_1", "delta": "fugue."}),
    ("out", {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}}),
)


def test_a_person_comes_before_the_answer_though_the_words_are_known_later():
    person, model = read_turns(recorded(*SPOKEN).lines)
    assert (person.role, person.text, person.at_s) == ("person", "What is it?", 1.0)
    assert (model.role, model.text, model.latency_s, model.reason) == ("model", "A fugue.", 1.5, "completed")


def test_in_full_duplex_an_answer_is_what_has_one_id():
    def told(kind, **fields):
        return ("out", {"type": "response.output.delta", "kind": kind, "response_id": "resp_1", **fields})

    session = recorded(
        ("in", {"type": "input.append", "input": {"audio": media()}}),
        told("listen", text=""),
        told("text", text="A fu"),
        told("audio", audio=media()),
        told("text", text="gue."),
        told("listen", text="", end_of_turn=True, interrupted=True),
        protocol="minicpmo",
    )
    (turn,) = read_turns(session.lines)
    assert (turn.text, turn.latency_s, turn.reason) == ("A fugue.", None, "interrupted")


def test_an_answer_in_chat_that_came_whole_has_its_words_too():
    asked = {"messages": [{"role": "user", "content": [{"type": "text", "text": "See?"}, {"type": "image_url", "image_url": {}}]}]}
    done = {"type": "response.done", "response_id": "resp_1", "text": "I do.", "reason": "turn_end"}
    turns = read_turns(recorded(("in", {"type": "input.append", "input": asked}), ("out", done), protocol="minicpmo").lines)
    assert [(turn.text, turn.reason) for turn in turns] == [("See? (picture)", None), ("I do.", "turn_end")]


def test_a_transcript_is_there_to_be_read():
    session = recorded(*SPOKEN, truncated="the disk is full")
    assert render_transcript(session.record, read_turns(session.lines)) == (
        "# Session sess_1\n\nrealtime, conversation, model `parrot`, 2.5 s, ended: left\n\n"
        "**00:01.0 Person**: What is it?\n\n**00:03.0 Model** (after 1.50 s): A fugue.\n\n"
        "The recording ends before the session: the disk is full.\n"
    )
