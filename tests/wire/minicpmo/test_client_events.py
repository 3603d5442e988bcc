"""MiniCPM-o client events are decoded in all forms that clients send, or refused with the field's name."""

import json
import struct

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import history
from antiphon.errors import ClientError
from antiphon.wire.minicpmo import chat, client_events as client, media
from antiphon.wire.minicpmo.decode import ID_LIMIT
from support.wire.minicpmo_samples import append, base64_of, floats, frame, jpeg, silence

SOUND = base64_of(floats(0.5, -0.5))
PCM = struct.pack("<2h", 16384, -16384)
SILENT = silence(10)
ASKED = [{"role": "user", "content": "x"}]


def read(sent, mode="video"):
    return client.decode_client(sent, mode)


def refused(sent, mode="video"):
    with pytest.raises(ClientError) as mistake:
        read(sent, mode)
    return mistake.value.code, mistake.value.param


def asked(**given):
    return read(append(**given), "chat")


def parts(*content):
    return asked(messages=[{"role": "user", "content": list(content)}]).messages[0].parts


# The frame


@pytest.mark.parametrize(
    "sent", [b"", b"{", b'{"type":"session.init","payload":{', b"\xff", b'{"type":"\xff"}', b'{"type":' + b"[" * 10_000]
)
def test_what_is_no_json_is_refused(sent):
    assert refused(sent)[0] == "invalid_json"


@pytest.mark.parametrize("sent", [b"[]", b"7", b'"x"', b"null"])
def test_an_event_is_an_object(sent):
    assert refused(sent) == ("invalid_payload", "event")


@pytest.mark.parametrize("sent", [b"{}", b'{"type":null}'])
def test_an_event_has_a_type(sent):
    assert refused(sent) == ("missing_field", "type")


def test_a_type_that_nobody_knows_is_refused():
    assert refused(frame("response.create")) == ("unknown_event", "type")


@pytest.mark.parametrize("type", ["client_diagnostic", "update", "session.update"])
def test_what_the_originals_pages_send_beside_the_protocol_is_known_and_ignored(type):
    assert read(frame(type, session={"instructions": 7})) == client.IgnoredEvent(type)


def test_fields_that_nothing_reads_are_named():
    sent = frame("session.init", payload={"instructions": "x", "voice_config": {}, "mode": "audio"}, message_id="1")
    assert client.ignored_fields(sent, read(sent)) == ["message_id", "payload.voice_config"]
    sent = append(audio=SOUND, speech_active=True, frame_base64_list=[])
    assert client.ignored_fields(sent, read(sent)) == ["input.speech_active"]
    sent = append(messages=ASKED, audio_base64=SOUND)
    assert client.ignored_fields(sent, read(sent, "chat")) == ["input.audio_base64"]
    sent = frame("session.close", reason="user_stop", code=1)
    assert client.ignored_fields(sent, read(sent)) == ["code"]


def test_of_fields_that_nothing_reads_only_a_few_are_named():
    sent = frame("session.init", payload={f"{number}" + "x" * 1000: 1 for number in range(1000)})
    names = client.ignored_fields(sent, read(sent))
    assert len(names) == client.MAX_IGNORED_NAMES and max(map(len, names)) <= ID_LIMIT + 1
    assert refused(b'{"type":7}') == ("invalid_payload", "type")


def test_fields_that_nobody_knows_are_passed_over():
    assert read(frame("session.init", payload={"new": [1], "config": {}}, event_id="e1")) == client.SessionInit()


# session.init


def test_a_session_may_begin_with_nothing():
    assert read(frame("session.init", payload={}), "chat") == client.SessionInit()


@pytest.mark.parametrize("payload", [None, "absent"])
def test_a_session_begins_with_a_payload(payload):
    sent = frame("session.init") if payload == "absent" else frame("session.init", payload=payload)
    assert refused(sent) == ("missing_field", "payload")


@pytest.mark.parametrize("payload", [7, [], "x"])
def test_a_payload_is_an_object(payload):
    assert refused(frame("session.init", payload=payload)) == ("invalid_payload", "payload")


@pytest.mark.parametrize(
    ("payload", "told"),
    [({"system_prompt": "A"}, "A"), ({"instructions": "B"}, "B"), ({"system_prompt": "A", "instructions": "B"}, "A")],
)
def test_what_the_model_is_told_has_two_names(payload, told):
    assert read(frame("session.init", payload=payload)).instructions == told


def test_settings_of_the_model_come_as_they_are():
    options = {"length_penalty": 1.1, "anything": {"at": ["all"]}}
    assert read(frame("session.init", payload={"config": options, "max_slice_nums": 4, "use_tts": False})) == client.SessionInit(
        options=options, slices=4, speaks=False
    )


@pytest.mark.parametrize(
    "payload",
    [
        {"voice": {"ref_audio_base64": SOUND}},
        {"voice": {"ref_audio": SOUND}},
        {"ref_audio_base64": SOUND},
        {"ref_audio": {"data": SOUND}},
        {"voice": {"ref_audio": SOUND}, "ref_audio_base64": SILENT},
    ],
)
def test_the_voice_to_have_is_found_wherever_clients_put_it(payload):
    assert read(frame("session.init", payload=payload)) == client.SessionInit(reference=PCM)


@pytest.mark.parametrize("payload", [{"voice": {"tts_ref_audio_base64": SOUND}}, {"tts_ref_audio": SOUND}])
def test_so_is_the_voice_to_speak_with(payload):
    assert read(frame("session.init", payload=payload)) == client.SessionInit(voice_reference=PCM)


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        ({"system_prompt": 7}, "payload.system_prompt"),
        ({"system_prompt": "x" * (client.PROMPT_LIMIT_CHARACTERS + 1)}, "payload.system_prompt"),
        ({"instructions": "x" * (client.PROMPT_LIMIT_CHARACTERS + 1)}, "payload.instructions"),
        ({"config": []}, "payload.config"),
        ({"config": {"x": "y" * client.OPTIONS_LIMIT_BYTES}}, "payload.config"),
        ({"voice": {"ref_audio": "AAA"}}, "payload.voice.ref_audio"),
        ({"voice": {"ref_audio": silence(60_001)}}, "payload.voice.ref_audio"),
        ({"voice": "nova"}, "payload.voice"),
        ({"max_slice_nums": 10}, "payload.max_slice_nums"),
        ({"max_slice_nums": 0}, "payload.max_slice_nums"),
        ({"use_tts": "no"}, "payload.use_tts"),
    ],
)
def test_a_beginning_that_cannot_be_is_refused_by_name(payload, param):
    assert refused(frame("session.init", payload=payload)) == ("invalid_payload", param)


def test_settings_are_not_nested_without_end():
    deep = {"x": 1}
    for _ in range(80):
        deep = {"x": deep}
    with pytest.raises(ClientError, match="nested") as mistake:
        read(frame("session.init", payload={"config": deep}))
    assert mistake.value.code == "invalid_json"


# input.append in full duplex


@pytest.mark.parametrize("given", [{"audio": SOUND}, {"audio_base64": SOUND}, {"audio_data": SOUND}, {"audio": {"data": SOUND}}])
def test_sound_has_several_names(given):
    assert read(append(**given)) == client.DuplexAppend(pcm=PCM)


def test_sound_may_have_no_samples():
    assert read(append(audio="", force_listen=True)) == client.DuplexAppend(pcm=b"", force_listen=True)


@pytest.mark.parametrize("name", ["video_frames", "frame_base64_list", "frames"])
def test_pictures_have_several_names(name):
    sent = append(audio=SOUND, **{name: [base64_of(jpeg()), {"data": base64_of(jpeg(4, 4))}]})
    assert read(sent).frames == (client.Frame(jpeg()), client.Frame(jpeg(4, 4)))


def test_each_picture_may_be_cut_into_its_own_number():
    pictures = [base64_of(jpeg())] * 2
    assert [each.slices for each in read(append(audio=SOUND, frames=pictures, max_slice_nums=3)).frames] == [3, 3]
    assert [each.slices for each in read(append(audio=SOUND, frames=pictures, max_slice_nums=[1, 9])).frames] == [1, 9]
    assert refused(append(audio=SOUND, frames=pictures, max_slice_nums=[1])) == ("invalid_payload", "input.max_slice_nums")


def test_hints_say_what_the_input_does_not():
    hinted = read(append(audio=SOUND, frames=[base64_of(jpeg())], hints={"force_listen": True, "max_slice_nums": 2}))
    assert hinted == client.DuplexAppend(pcm=PCM, frames=(client.Frame(jpeg(), 2),), force_listen=True)
    assert not read(append(audio=SOUND, force_listen=False, hints={"force_listen": True})).force_listen


def test_clients_may_name_what_they_say_and_what_they_get():
    named = read(append(audio=SOUND, input_id="input_mine", response_id="resp_mine"))
    assert (named.input_id, named.response_id) == ("input_mine", "resp_mine")


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        ({}, "missing_field", "input.audio"),
        ({"audio": None}, "missing_field", "input.audio"),
        ({"audio": 7}, "invalid_payload", "input.audio"),
        ({"audio": "AAA"}, "invalid_payload", "input.audio"),
        ({"audio_base64": base64_of(bytes(5))}, "invalid_payload", "input.audio_base64"),
        ({"audio": base64_of(floats(float("nan")))}, "invalid_payload", "input.audio"),
        ({"audio": silence(5_001)}, "invalid_payload", "input.audio"),
        ({"audio": SOUND, "frames": [base64_of(jpeg())] * 9}, "invalid_payload", "input.frames"),
        ({"audio": SOUND, "video_frames": ["AAAA"]}, "invalid_payload", "input.video_frames[0]"),
        ({"audio": SOUND, "video_frames": "AAAA"}, "invalid_payload", "input.video_frames"),
        ({"audio": SOUND, "video_frames": [base64_of(jpeg() + bytes(2 << 20))]}, "invalid_payload", "input.video_frames[0]"),
        ({"audio": SOUND, "force_listen": 1}, "invalid_payload", "input.force_listen"),
        ({"audio": SOUND, "input_id": "x" * (ID_LIMIT + 1)}, "invalid_payload", "input.input_id"),
        ({"audio": SOUND, "max_slice_nums": 0}, "invalid_payload", "input.max_slice_nums"),
        ({"audio": SOUND, "max_slice_nums": [1]}, "invalid_payload", "input.max_slice_nums"),
        ({"audio": SOUND, "hints": {"max_slice_nums": 10}}, "invalid_payload", "input.hints.max_slice_nums"),
        ({"messages": []}, "mode_mismatch", "input.messages"),
    ],
)
def test_an_append_that_cannot_be_is_refused_by_name(given, code, param):
    assert refused(append(**given)) == (code, param)


def test_an_append_has_an_input():
    assert refused(frame("input.append")) == ("missing_field", "input")
    assert refused(frame("input.append", audio=SOUND), "chat") == ("missing_field", "input")


# input.append in chat


def test_a_question_is_as_the_original_has_it_where_it_says_no_more():
    assert asked(messages=[{"role": "user", "content": "Hi"}]) == client.ChatAppend(
        messages=(history.Message("user", (history.TextPart("Hi"),)),), streaming=True, max_tokens=256
    )


def test_a_question_says_how_it_is_to_be_answered():
    given = asked(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": []}],
        streaming=False,
        generation={"max_new_tokens": 64, "length_penalty": 1.2},
        image={"max_slice_nums": 9},
        tts={"enabled": True, "ref_audio_data": SOUND},
        omni_mode=True,
        enable_thinking=True,
        input_id="i",
        response_id="r",
    )
    assert given == client.ChatAppend(
        messages=(history.Message("system", (history.TextPart("Be brief."),)), history.Message("user", ())),
        streaming=False,
        max_tokens=64,
        length_penalty=1.2,
        slices=9,
        is_omni=True,
        speaks=True,
        voice_reference=PCM,
        thinks=True,
        input_id="i",
        response_id="r",
    )


def test_the_template_of_speech_asks_for_speech():
    assert asked(messages=[{"role": "user", "content": "Hi"}], use_tts_template=True, tts={"ref_audio_data": None}).speaks


WAV = b"RIFF\0\0\0\0WAVEfmt "
URL = f"data:image/jpeg;base64,{base64_of(jpeg())}"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "text", "text": "Hi"}, history.TextPart("Hi")),
        ({"type": "image", "data": base64_of(jpeg())}, history.ImagePart(url=URL)),
        ({"type": "image", "image": URL}, history.ImagePart(url=URL)),
        ({"type": "image_url", "image_url": {"url": URL}}, history.ImagePart(url=URL)),
        ({"type": "image_url", "image_url": URL}, history.ImagePart(url=URL)),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}}, history.ImagePart(url="https://example.com/a.jpg")),
        ({"type": "audio", "data": SOUND}, history.SpeechPart(PCM, 16_000)),
        ({"type": "audio", "audio": {"data": SOUND}}, history.SpeechPart(PCM, 16_000)),
        ({"type": "audio", "data": base64_of(WAV)}, history.AudioPart(base64_of(WAV), "wav")),
        ({"type": "input_audio", "input_audio": {"data": base64_of(WAV), "format": "wav"}}, history.AudioPart(base64_of(WAV), "wav")),
        ({"type": "input_audio", "input_audio": {"data": "AAEC", "format": "mp3"}}, history.AudioPart("AAEC", "mp3")),
        ({"type": "video", "data": "AAEC"}, history.VideoPart("AAEC")),
        ({"type": "video", "data": "data:video/mp4;base64,AAEC", "stack_frames": 4}, history.VideoPart("AAEC", 4)),
    ],
)
def test_messages_have_parts_of_several_kinds(part, said):
    assert parts(part) == (said,)


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        ({}, "missing_field", "type"),
        ({"type": "poem"}, "invalid_payload", "type"),
        ({"type": "text"}, "missing_field", "text"),
        ({"type": "image"}, "missing_field", "data"),
        ({"type": "image", "data": "AAAA"}, "invalid_payload", "data"),
        ({"type": "image", "data": "/etc/passwd"}, "invalid_payload", "data"),
        ({"type": "image_url"}, "missing_field", "image_url"),
        ({"type": "image_url", "image_url": {}}, "missing_field", "image_url"),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, "invalid_payload", "image_url"),
        ({"type": None}, "missing_field", "type"),
        ({"type": "audio", "data": "AAA="}, "invalid_payload", "data"),
        ({"type": "input_audio"}, "missing_field", "input_audio.data"),
        ({"type": "video", "data": "?"}, "invalid_payload", "data"),
        ({"type": "video", "data": "AAEC", "stack_frames": 65}, "invalid_payload", "stack_frames"),
    ],
)
def test_a_part_that_cannot_be_is_refused_by_name(part, code, param):
    sent = append(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, part]}])
    assert refused(sent, "chat") == (code, f"input.messages[0].content[1].{param}")


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        ({}, "missing_field", "input.messages"),
        ({"messages": []}, "invalid_payload", "input.messages"),
        ({"messages": [{"role": "user", "content": "x"}] * (chat.MESSAGES_LIMIT + 1)}, "invalid_payload", "input.messages"),
        ({"messages": [{"content": "x"}]}, "missing_field", "input.messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_payload", "input.messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_field", "input.messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (chat.PARTS_LIMIT + 1)}]},
            "invalid_payload",
            "input.messages[0].content",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "generation": {"max_new_tokens": 0}},
            "invalid_payload",
            "input.generation.max_new_tokens",
        ),
        (
            {"messages": ASKED, "generation": {"max_new_tokens": chat.MAX_TOKENS_LIMIT + 1}},
            "invalid_payload",
            "input.generation.max_new_tokens",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "missing_field", "input.messages[0].content"),
        ({"messages": [None]}, "invalid_payload", "input.messages[0]"),
        ({"audio": SOUND}, "mode_mismatch", "input.audio"),
        ({"messages": ASKED, "tts": {"ref_audio_data": "AAA"}}, "invalid_payload", "input.tts.ref_audio_data"),
    ],
)
def test_a_question_that_cannot_be_is_refused_by_name(given, code, param):
    assert refused(append(**given), "chat") == (code, param)


def test_a_picture_by_an_address_that_nobody_fetches_is_told_so():
    sent = append(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "ftp://example.com/a.jpg"}]}])
    with pytest.raises(ClientError, match="expected a URL of data, http, or https"):
        read(sent, "chat")


@pytest.mark.parametrize("given", [{"role": "x" * 10_000, "content": "x"}, {"role": "user", "content": [{"type": "x" * 10_000}]}])
def test_what_is_wrong_is_not_told_back_at_length(given):
    with pytest.raises(ClientError) as mistake:
        asked(messages=[given])
    assert len(mistake.value.message) < 300


# session.close


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, None),
        ({"reason": ""}, None),
        ({"reason": "user_stop"}, "user_stop"),
        *(({"reason": reason}, None) for reason in (None, 7, True, {}, ["user_stop"])),
    ],
)
def test_a_client_says_why_it_goes_or_does_not_and_goes(given, reason):
    assert read(frame("session.close", **given)) == client.SessionClose(reason)


def test_a_reason_is_told_back_and_so_is_cut_short():
    assert read(frame("session.close", reason="x" * 1_000)).reason == "x" * ID_LIMIT


# Anything


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "x", SOUND, "data:,", base64_of(jpeg()), "text", "user", "image"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["audio", "data", "frames", "messages", "role", "content", "type", "tts", "hints", "voice", "config", "image", "url"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(client.MODES), st.sampled_from(["session.init", "input.append", "session.close", "x"]), values, values)
def test_whatever_comes_is_an_event_or_a_mistake(mode, type, payload, given):
    taken_or_refused(json.dumps({"type": type, "payload": payload, "input": given, "reason": given}).encode(), mode)


@given(st.sampled_from(client.MODES), st.binary(max_size=80))
def test_so_it_is_with_bytes(mode, sent):
    taken_or_refused(sent, mode)
    taken_or_refused(b'{"type":"input.append","input":' + sent + b"}", mode)


def taken_or_refused(sent, mode):
    try:
        assert isinstance(read(sent, mode), client.ClientEvent)
    except ClientError as mistake:
        assert mistake.message
        assert mistake.code in ("invalid_json", "unknown_event", "missing_field", "invalid_payload", "mode_mismatch", None)


def test_limits_are_of_what_is_decoded():
    assert len(read(append(audio=silence(media.AUDIO_LIMIT_S * 1_000))).pcm) == media.AUDIO_LIMIT_S * 32_000


@pytest.mark.parametrize(
    ("sent", "mode", "reason"),
    [
        (b'{"type":3}', "audio", "Invalid 'type': expected a string, but got an integer."),
        (b"[]", "audio", "Invalid 'event': expected an object, but got an array."),
        (
            b'{"type":"session.init","payload":{"use_tts":"x"}}',
            "audio",
            "Invalid 'payload.use_tts': expected true or false, but got a string.",
        ),
        (
            b'{"type":"session.init","payload":{"max_slice_nums":"x"}}',
            "audio",
            "Invalid 'payload.max_slice_nums': expected an integer or an array, but got a string.",
        ),
        (
            b'{"type":"input.append","input":{"messages":[{"role":"user","content":""},{"role":"x","content":""}]}}',
            "chat",
            "Invalid 'input.messages[1].role': expected one of 'system', 'user', or 'assistant', but got 'x'.",
        ),
    ],
)
def test_a_mistake_is_told_in_plain_words(sent, mode, reason):
    with pytest.raises(ClientError) as refusal:
        client.decode_client(sent, mode)
    assert refusal.value.message == reason
