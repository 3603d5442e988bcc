"""What a response's events tell of its output is what the session itself would end it with, wherever it is cut."""

import json

import pytest

from antiphon.engine_api import events as engine
from antiphon.engine_api.capabilities import Capabilities
from antiphon.runtime.background.partial_output import PartialOutput
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.events import decode_event
from antiphon.wire.responses.tools import ApplyPatchTool, CustomTool, FunctionTool, ShellTool
from support.protocols.responses_dialogues import Dialogue, session_for
from support.protocols.words import ID

LOGPROB = engine.TokenLogprob(engine.TokenCandidate("Hi", -0.5, (72, 105)), (engine.TokenCandidate("Ho", -1.5, (72, 111)),))
OUTPUT = [
    engine.ReasoningDelta(ID, "First, "),
    engine.ReasoningDelta(ID, "a thought."),
    engine.ReasoningDelta(ID, "Its summary.", summary=True),
    engine.TextDelta(ID, "Hi", (LOGPROB,)),
    engine.TextDelta(ID, " there"),
    engine.AnnotationAdded(ID, {"type": "file_path", "file_id": "file_1", "index": 1}),
    engine.RefusalDelta(ID, "I can't."),
    engine.ToolCallStarted(ID, "call_1", "weather"),
    engine.ToolArgumentsDelta(ID, "call_1", '{"city":'),
    engine.ToolArgumentsDelta(ID, "call_1", '"Ulm"}'),
    engine.ToolCallDone(ID, "call_1"),
    engine.ToolCallStarted(ID, "call_2", "shout", custom=True),
    engine.ToolArgumentsDelta(ID, "call_2", "Ha"),
    engine.ToolCallDone(ID, "call_2"),
    engine.ToolCallStarted(ID, "call_3", "shell"),
    engine.ToolArgumentsDelta(ID, "call_3", '{"commands":["ls'),
    engine.ToolArgumentsDelta(ID, "call_3", ' -l","pw'),
    engine.ToolArgumentsDelta(ID, "call_3", 'd"]}'),
    engine.ToolCallDone(ID, "call_3"),
    engine.ToolCallStarted(ID, "call_4", "apply_patch"),
    engine.ToolArgumentsDelta(ID, "call_4", '{"type":"create_file","path":"a.txt","diff":"+o'),
    engine.ToolArgumentsDelta(ID, "call_4", "ne"),
    engine.ToolArgumentsDelta(ID, "call_4", '"}'),
    engine.ToolCallDone(ID, "call_4"),
    engine.HostedToolStarted(ID, {"type": "web_search_call", "id": "ws_1", "status": "in_progress", "action": {"type": "search"}}),
    engine.HostedToolDone(ID, {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}),
]
SPOKEN = [
    engine.AudioTranscriptDelta(ID, "Hello"),
    engine.AudioDelta(ID, b"\0\0" * 10),
    engine.AudioTranscriptDelta(ID, " you"),
]
TOOLS = [FunctionTool(name="weather", parameters={}, strict=False), CustomTool(name="shout"), ShellTool(), ApplyPatchTool()]


def check_cut(dialogue, output):
    """Compare what the events tell with what the session does when its model fails."""
    dialogue.said(*output)
    partial_output = PartialOutput(ID)
    events = [decode_event(encode(event)) for event in dialogue.events]
    partial_output.read(events)
    closing = [json.loads(encode(event)) for event in partial_output.closing_events(len(events))]
    items = [json.loads(encode(item)) for item in partial_output.all_items()]
    dialogue.said(engine.ResponseFailed(id=ID, message="It broke."))
    *expected, _error, failed = dialogue.events[len(events) :]
    assert closing == expected
    assert items == failed["response"]["output"]


@pytest.mark.parametrize("count", range(len(OUTPUT) + 1))
def test_a_cut_after_any_event_ends_as_the_session_would_have_ended_it(count):
    check_cut(Dialogue(session_for(tools=TOOLS)), OUTPUT[:count])


@pytest.mark.parametrize("count", range(len(SPOKEN) + 1))
def test_a_spoken_message_ends_with_its_audio(count):
    check_cut(Dialogue(session_for(modalities=["text", "audio"], capabilities=Capabilities(audio_out=True))), SPOKEN[:count])
