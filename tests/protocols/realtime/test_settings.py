"""The settings of a session: what they begin as, how they change, what stays, and what can't be had."""

import pytest

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.options import FunctionTool, Retention, Sampling, ToolChoice, Transcription, TurnDetection
from antiphon.wire.realtime.session import decode_session
from support.protocols.realtime_dialogues import ANY, MISSING, TEXT, Closes, Tells, error, event, responds, silence, sound

BOTH = pytest.mark.parametrize("dialect", ["ga", "beta"])
MCP = {"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1/"}


def update(event_id="mine", **fields):
    return event("session.update", session={"type": "realtime", **fields}, event_id=event_id)


def hears(**fields):
    return update(audio={"input": fields})


def speaks(**fields):
    return update(audio={"output": fields})


def updated(**fields):
    return event("session.updated", session=fields)


def begun(talk_to, **options):
    session = talk_to(is_new=True, **options)
    created = next(each for each in session.events() if each["type"] == "session.created")
    return created["session"]


# What a session begins as


def test_a_session_begins_with_the_original_settings(talk_to):
    created = begun(talk_to, instructions="Be kind.")
    detection = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500, "idle_timeout_ms": None}
    detection |= {"create_response": True, "interrupt_response": True}
    pcm = {"type": "audio/pcm", "rate": 24_000}
    sound_in = {"format": pcm, "transcription": None, "noise_reduction": None, "turn_detection": detection}
    assert created == {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_1",
        "model": "parrot",
        "expires_at": 4_600,
        "output_modalities": ["audio"],
        "instructions": "Be kind.",
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_output_tokens": "inf",
        "tracing": None,
        "truncation": "auto",
        "prompt": None,
        "audio": {"input": sound_in, "output": {"format": pcm, "voice": "alloy", "speed": 1.0}},
        "include": None,
    }


def test_a_beta_session_is_flat(talk_to):
    created = begun(talk_to, dialect="beta")
    assert "audio" not in created and "type" not in created
    assert (created["modalities"], created["voice"], created["input_audio_format"]) == (["text", "audio"], "alloy", "pcm16")


def test_an_engine_that_only_writes_answers_in_writing(talk_to):
    assert begun(talk_to, capabilities=TEXT)["output_modalities"] == ["text"]


def test_an_engine_that_hears_and_finds_no_turns_leaves_them_to_the_client(talk_to):
    assert begun(talk_to, capabilities=Capabilities(audio_in=True))["audio"]["input"]["turn_detection"] is None


def test_a_transcription_session_has_only_what_is_heard(talk_to):
    created = begun(talk_to, is_transcription=True)
    assert created.keys() == {"type", "object", "id", "expires_at", "audio", "include"}
    assert created["audio"].keys() == {"input"}
    assert created["audio"]["input"]["transcription"] == {}


def test_a_session_may_begin_with_what_was_set_beforehand(talk_to):
    session = decode_session(b'{"type":"realtime","model":"parrot","instructions":"Sing.","audio":{"output":{"voice":"marin"}}}')
    created = begun(talk_to, session=session)
    assert (created["instructions"], created["audio"]["output"]["voice"]) == ("Sing.", "marin")
    assert created["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24_000}


def test_a_session_that_was_set_to_what_can_not_be_had_is_over_at_once(talk_to):
    session = decode_session(b'{"type":"realtime","output_modalities":["audio"]}')
    talk_to(capabilities=TEXT, session=session, is_new=True) << error("unsupported_value") << Closes("unsupported_value")


def test_the_engine_is_told_how_to_listen_before_anything_else(talk_to):
    detection = TurnDetection("server_vad", 0.5, 300, 500)
    session = talk_to(is_new=True) << commands.Configure(rate_hz=24_000, turn_detection=detection) << "session.created"
    assert session.pending == []


# How settings change


def test_what_is_not_named_stays_and_all_of_it_is_told(talk_to):
    session = talk_to() >> update(instructions="Be brief.", max_output_tokens=100)
    session << updated(instructions="Be brief.", max_output_tokens=100, id="sess_1", audio={"output": {"voice": "alloy"}, "input": ANY})
    session >> speaks(voice="marin") << updated(instructions="Be brief.", audio={"output": {"voice": "marin", "speed": 1.0}})
    session >> update() << updated(instructions="Be brief.", max_output_tokens=100, audio={"output": {"voice": "marin"}})


def test_parts_of_turn_detection_stay_as_well(talk_to):
    session = talk_to() >> hears(turn_detection={"type": "server_vad", "threshold": 0.9})
    detection = {"threshold": 0.9, "silence_duration_ms": 500, "create_response": True, "interrupt_response": True}
    (
        session
        << Tells(commands.Configure, turn_detection=TurnDetection(threshold=0.9))
        << updated(audio={"input": {"turn_detection": detection}})
    )
    (
        session
        >> hears(turn_detection={"type": "server_vad", "silence_duration_ms": 200, "create_response": False})
        << Tells(commands.Configure)
    )
    detection |= {"silence_duration_ms": 200, "create_response": False}
    session << updated(audio={"input": {"turn_detection": detection}})


def test_another_kind_of_turn_detection_begins_as_it_usually_is(talk_to):
    session = talk_to() >> hears(turn_detection={"type": "semantic_vad", "eagerness": "low"})
    session << Tells(commands.Configure, turn_detection=TurnDetection("semantic_vad", eagerness="low"))
    detection = {"type": "semantic_vad", "eagerness": "low", "create_response": True, "interrupt_response": True, "threshold": MISSING}
    session << updated(audio={"input": {"turn_detection": detection}})
    session >> hears(turn_detection={"type": "server_vad"}) << Tells(commands.Configure)
    session << updated(audio={"input": {"turn_detection": {"threshold": 0.5, "eagerness": MISSING}}})


@pytest.mark.parametrize("name", ["turn_detection", "transcription", "noise_reduction"])
def test_null_switches_off(talk_to, name):
    on = {"turn_detection": {"type": "server_vad"}, "transcription": {"model": "whisper-1"}, "noise_reduction": {"type": "near_field"}}
    session = talk_to().update(audio={"input": {name: on[name]}}) >> hears(**{name: None})
    session << Tells(commands.Configure, **{name: None}) << updated(audio={"input": {name: None}})


def test_null_and_empty_clear_what_can_be_cleared(talk_to):
    tool = {"type": "function", "name": "f", "parameters": {}}
    session = talk_to(instructions="Be kind.").update(instructions="Sing.", tools=[tool], tool_choice="required", max_output_tokens=5)
    session >> update(instructions="", tools=[]) << updated(instructions="", tools=[], tool_choice="required", max_output_tokens=5)
    session >> update(instructions=None, tool_choice=None, max_output_tokens=None)
    session << updated(instructions="Be kind.", tools=[])


def test_the_beta_changes_the_same_settings_by_other_names(talk_to):
    session = talk_to(dialect="beta")
    fields = {"modalities": ["text"], "voice": "marin", "output_audio_format": "g711_alaw", "temperature": 0.7}
    fields |= {"max_response_output_tokens": 9, "input_audio_transcription": {"model": "whisper-1"}, "turn_detection": None}
    session >> event("session.update", session=fields) << Tells(commands.Configure, turn_detection=None) << updated(**fields)
    session >> event("response.create") << "response.created"
    session << responds(sampling=Sampling(temperature=0.7, max_tokens=9), voice=None)
    session.skip()


def test_what_is_said_of_what_only_the_server_says_is_passed_over(talk_to):
    session = talk_to() >> update(id="sess_mine", object="realtime.session", expires_at=1, model="another")
    session << updated(id="sess_1", expires_at=4_600, model="parrot")


def test_a_change_holds_for_the_next_answer_and_not_for_the_one_under_way(talk_to):
    session = talk_to() >> event("response.create") << "response.created" << responds()
    session >> update(output_modalities=["text"]) << updated(output_modalities=["text"])
    session >> (events.AudioTranscriptDelta("resp_1", "Hi"), events.ResponseEnded("resp_1"))
    assert "response.output_audio_transcript.delta" in [each["type"] for each in session.events()]
    session >> event("response.create") << event("response.created", response={"output_modalities": ["text"]})
    session << responds("resp_2", voice=None)


def test_the_engine_is_told_only_of_what_is_new_to_it(talk_to):
    talk_to() >> update(instructions="Sing.", audio={"input": {"turn_detection": {"type": "server_vad"}}}) << "session.updated"


def test_tools_and_the_choice_of_them_reach_the_engine(talk_to):
    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    session = talk_to().update(tools=[tool], tool_choice={"type": "function", "name": "add"}, parallel_tool_calls=False)
    session >> event("response.create") << "response.created"
    wanted = (FunctionTool("add", "Adds.", {"type": "object"}),)
    (
        session
        << responds(tools=wanted, tool_choice=ToolChoice("required", ("add",)), parallel_tool_calls=False)
        >> events.ResponseEnded("resp_1")
    )
    session.skip() >> event("response.create", response={"tool_choice": "none"}) << "response.created"
    session << responds("resp_2", tools=wanted, tool_choice=ToolChoice("none"))


@pytest.mark.parametrize(
    ("truncation", "truncate", "retention"),
    [
        ("auto", True, None),
        ("disabled", False, None),
        ({"type": "retention_ratio", "retention_ratio": 0.5}, True, Retention(0.5)),
        (
            {"type": "retention_ratio", "retention_ratio": 0.8, "token_limits": {"post_instructions": 900}},
            True,
            Retention(0.8, 900),
        ),
    ],
)
def test_how_much_is_forgotten_is_for_the_engine_to_know(talk_to, truncation, truncate, retention):
    session = talk_to().update(truncation=truncation) >> event("response.create") << "response.created"
    session << responds(truncate=truncate, retention=retention)


def test_the_tools_of_a_server_can_not_be_listed_for_a_model_without_functions(talk_to):
    session = talk_to(capabilities=Capabilities()) >> update(tools=[MCP]) << "session.updated"
    session << event("conversation.item.added", item={"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []})
    session << event("mcp_list_tools.in_progress", item_id="mcpl_1") << event("mcp_list_tools.failed", item_id="mcpl_1")
    session << "conversation.item.done" >> update(tools=[MCP]) << "session.updated"


# What stays


def heard(talk_to, **options):
    return talk_to(**options).answer(events.AudioTranscriptDelta("resp_1", "Hi"), events.AudioDelta("resp_1", silence(20)))


@BOTH
def test_a_voice_that_was_heard_stays(talk_to, dialect):
    session = heard(talk_to, dialect=dialect)
    fields = {"type": "realtime", "audio": {"output": {"voice": "marin"}}} if dialect == "ga" else {"voice": "marin"}
    param = "session.audio.output.voice" if dialect == "ga" else "session.voice"
    message = "Cannot update a conversation's voice if assistant audio is present."
    session >> event("session.update", session=fields, event_id="mine")
    session << error("cannot_update_voice", "mine", message=message, param=param)


def test_the_same_voice_may_be_said_again_and_again(talk_to):
    session = heard(talk_to) >> speaks(voice="alloy") << "session.updated"
    session >> event("response.create", response={"audio": {"output": {"voice": "alloy"}}}) << "response.created" << responds("resp_2")


def test_one_answer_can_not_have_another_voice_either(talk_to):
    session = heard(talk_to) >> event("response.create", response={"audio": {"output": {"voice": "marin"}}}, event_id="mine")
    session << error("cannot_update_voice", "mine", param="response.audio.output.voice")


def test_before_it_was_heard_a_voice_can_be_changed(talk_to):
    talk_to().answer(events.TextDelta("resp_1", "Hi")) >> speaks(voice="marin") << updated(audio={"output": {"voice": "marin"}})


def test_tracing_once_on_stays(talk_to):
    session = talk_to() >> update(tracing="auto") << updated(tracing="auto") >> update(tracing="auto") << "session.updated"
    session >> update(tracing={"workflow_name": "w"}) << error("cannot_update_tracing", "mine", param="session.tracing")
    session >> update(tracing=None) << updated(tracing="auto")


@pytest.mark.parametrize("is_transcription", [True, False])
def test_a_session_stays_of_its_kind(talk_to, is_transcription):
    has, asked = ("transcription", "realtime") if is_transcription else ("realtime", "transcription")
    session = talk_to(is_transcription=is_transcription) >> event("session.update", session={"type": asked}, event_id="mine")
    message = f"Passing a {asked} session update event to a {has} session is not allowed."
    session << error("invalid_value", "mine", param="session.type", message=message)
    session >> event("session.update", session={"type": has}) << event("session.updated", session={"type": has})


def test_a_model_that_the_server_has_can_not_be_changed_to(talk_to):
    session = talk_to(has_model=lambda name: name == "owl") >> update(model="owl") << error("cannot_update_model", "mine")
    session >> update(model="gpt-realtime") << updated(model="parrot")


def test_the_rate_of_sound_stays_while_there_is_sound(talk_to):
    session = talk_to().update(audio={"input": {"turn_detection": None}}) >> sound(silence(200)) << Tells(commands.AppendAudio)
    session >> hears(format={"type": "audio/pcmu"}) << error("invalid_value", "mine", param="session.audio.input.format")
    session >> event("input_audio_buffer.clear") << commands.ClearAudio() << "input_audio_buffer.cleared"
    (
        session
        >> hears(format={"type": "audio/pcmu"})
        << Tells(commands.Configure, rate_hz=8_000)
        << updated(audio={"input": {"format": {"type": "audio/pcmu", "rate": MISSING}}})
    )


# What can't be had


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
            "integer_below_min_value",
            "session.audio.input.format.rate",
        ),
        (
            {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 48_000}}}},
            "integer_above_max_value",
            "session.audio.output.format.rate",
        ),
        ({"audio": {"output": {"format": {"type": "audio/opus"}}}}, "invalid_value", "session.audio.output.format.type"),
        ({"audio": {"output": {"speed": 2.0}}}, "decimal_above_max_value", "session.audio.output.speed"),
        ({"audio": {"output": {"voice": "nobody"}}}, "unsupported_value", "session.audio.output.voice"),
        ({"audio": {"input": {"turn_detection": {"type": "psychic"}}}}, "invalid_value", "session.audio.input.turn_detection.type"),
        ({"audio": {"input": {"turn_detection": {}}}}, "missing_required_parameter", "session.audio.input.turn_detection.type"),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 100}}}},
            "integer_below_min_value",
            "session.audio.input.turn_detection.idle_timeout_ms",
        ),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "session.output_modalities"),
        ({"output_modalities": []}, "invalid_value", "session.output_modalities"),
        ({"max_output_tokens": 5_000}, "integer_above_max_value", "session.max_output_tokens"),
        ({"max_output_tokens": "most"}, "invalid_value", "session.max_output_tokens"),
        ({"instructions": 7}, "invalid_type", "session.instructions"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "session.prompt"),
        ({"reasoning": {"effort": "xhigh"}}, "unsupported_value", "session.reasoning.effort"),
        ({"instructions": "a" * 2_000_000}, "string_above_max_length", "session"),
    ],
)
def test_what_can_not_be_had_is_refused_by_name_and_nothing_has_changed(talk_to, fields, code, param):
    session = talk_to()
    was = session.session._session
    session >> update(**{"instructions": "Sing.", "truncation": "disabled"} | fields) << error(code, "mine", param=param)
    assert session.session._session == was
    session >> update() << "session.updated"


@pytest.mark.parametrize(
    ("capabilities", "fields", "param"),
    [
        (TEXT, {"output_modalities": ["audio"]}, "session.output_modalities"),
        (Capabilities(audio_in=True), {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}, ANY),
        (
            Capabilities(audio_in=True, noise_reduction=("near_field",)),
            {"audio": {"input": {"turn_detection": None, "noise_reduction": {"type": "far_field"}}}},
            "session.audio.input.noise_reduction.type",
        ),
        (Capabilities(efforts=("high",)), {"reasoning": {"effort": "low"}}, "session.reasoning.effort"),
    ],
)
def test_what_the_engine_can_not_do_is_refused_by_name(talk_to, capabilities, fields, param):
    (
        talk_to(capabilities=capabilities)
        >> update(**fields)
        << event("error", error={"type": "invalid_request_error", "param": param, "event_id": "mine"})
    )


HEARING = Capabilities(audio_in=True, listens=True, turn_detection=("server_vad",), transcribes=True, takes_prompt=False)
"""An engine that hears and can act on no hint."""


@pytest.mark.parametrize(
    "fields",
    [{"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}}, {"reasoning": {"effort": "xhigh"}}],
    ids=["truncation", "effort"],
)
def test_hints_are_shown_in_the_session_and_not_told_to_an_engine_that_can_not_act_on_them(talk_to, fields):
    session = talk_to(capabilities=TEXT) >> update(**fields) << updated(**fields) >> event("response.create") << "response.created"
    session << responds(reasoning_effort=None, retention=None, truncate=False)


def test_an_effort_for_one_response_is_a_hint(talk_to):
    session = talk_to(capabilities=TEXT) >> event("response.create", response={"reasoning": {"effort": "low"}}) << "response.created"
    session << responds(reasoning_effort=None)


def test_hints_of_how_to_hear_are_not_told_to_an_engine_that_can_not_act_on_them(talk_to):
    noise = {"noise_reduction": {"type": "near_field", "strength": 0.5}}
    words = {"transcription": {"model": "whisper-1", "prompt": "Cards.", "keywords": ["clubs"]}}
    (
        talk_to(capabilities=HEARING)
        >> hears(**noise)
        << updated(audio={"input": noise})
        >> hears(**words)
        << Tells(commands.Configure, transcription=Transcription(model="whisper-1"), noise_reduction=None)
        << updated(audio={"input": noise | words})
    )


def test_the_type_is_missed(talk_to):
    missed = error("missing_required_parameter", "mine", message="Missing required parameter: 'session.type'.", param="session.type")
    session = talk_to() >> event("session.update", session={"instructions": "Sing."}, event_id="mine") << missed
    talk_to(dialect="beta") >> event("session.update", session={"instructions": "Sing."}) << updated(instructions="Sing.")
    session >> event("session.update", event_id="mine") << error("missing_required_parameter", "mine", param="session")


def test_oddities_that_do_no_harm_are_no_errors(talk_to):
    odd = {
        "something_new": [1],
        "audio": {"input": {"format": None, "noise_reduction": None, "new": 1}, "output": {"voice": None, "speed": None}},
    }
    odd |= {"temperature": None, "tools": None, "output_modalities": None, "tracing": None, "include": None, "truncation": None}
    talk_to() >> update(**odd) << updated(audio={"output": {"voice": "alloy", "speed": 1.0}})


def test_what_nobody_reads_is_not_shown(talk_to):
    session = talk_to().update(audio={"input": {"transcription": {"model": "whisper-1", "foo": 1}}})
    assert session.log[-1]["session"]["audio"]["input"]["transcription"] == {"model": "whisper-1"}
    limits = {"post_instructions": 9}
    truncation = {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": limits}
    odd = truncation | {"token_limits": limits | {"new": 1}, "new": 1}
    shown = session.update(truncation=odd, reasoning={"effort": "low", "new": 1}).log[-1]["session"]
    assert (shown["truncation"], shown["reasoning"]) == (truncation, {"effort": "low"})
    old = talk_to(dialect="beta").update(input_audio_transcription={"enabled": True, "model": "whisper-1"})
    assert old.log[-1]["session"]["input_audio_transcription"] == {"model": "whisper-1"}


def test_an_engine_that_can_not_hear_lets_a_client_say_what_it_always_says(talk_to):
    usual = {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}, "transcription": {"model": "whisper-1"}}}}
    talk_to(capabilities=TEXT) >> update(**usual) << "session.updated"


def test_tools_are_refused_where_none_can_be_called(talk_to):
    tool = {"type": "function", "name": "f", "parameters": {}}
    session = talk_to(capabilities=Capabilities()) >> event("response.create", response={"tools": [tool]}, event_id="mine")
    session << error("unsupported_parameter", "mine", param="response.tools")
    (
        session
        >> update(tools=[tool])
        << "session.updated"
        >> event("response.create")
        << error("unsupported_parameter", param="session.tools")
    )


@pytest.mark.parametrize("choice", [{"type": "function", "name": "g"}, {"type": "mcp", "server_label": "other"}])
def test_a_choice_of_what_there_is_not_is_refused(talk_to, choice):
    session = talk_to() >> event("response.create", response={"tool_choice": choice}, event_id="mine")
    session << error("invalid_value", "mine", param="response.tool_choice")
    (
        session
        >> update(tool_choice=choice)
        << "session.updated"
        >> event("response.create")
        << error("invalid_value", param="session.tool_choice")
    )
