"""What goes to MiniCPM-o workers and comes from them, frame by frame."""

import json

import msgspec
import pytest

from antiphon.wire.upstream import minicpmo_backend


def test_a_session_is_asked_for_with_what_was_said_and_nothing_else():
    said = minicpmo_backend.SessionInit(payload=minicpmo_backend.SessionPayload(mode="full_duplex", use_tts=True, system_prompt="Be kind."))
    assert json.loads(minicpmo_backend.encode(said)) == {
        "type": "session.init",
        "payload": {"mode": "full_duplex", "use_tts": True, "system_prompt": "Be kind."},
    }


def test_sound_and_pictures_go_in_base64():
    said = minicpmo_backend.InputAppend(
        input=minicpmo_backend.DuplexInput(audio=b"\0\0\x80\x3e", video_frames=[b"jpeg"], force_listen=True)
    )
    assert json.loads(minicpmo_backend.encode(said)) == {
        "type": "input.append",
        "input": {"audio": "AACAPg==", "video_frames": ["anBlZw=="], "force_listen": True},
    }


def test_a_question_says_that_it_is_streamed_also_where_that_goes_without_saying():
    asked = minicpmo_backend.ChatInput(messages=[minicpmo_backend.Message(role="user", content="Hi")], streaming=True)
    assert json.loads(minicpmo_backend.encode(minicpmo_backend.InputAppend(input=asked)))["input"] == {
        "messages": [{"role": "user", "content": "Hi"}],
        "streaming": True,
        "generation": {},
        "tts": {},
        "image": {},
    }


@pytest.mark.parametrize(
    ("frame", "kind", "text", "audio"),
    [
        (b'{"type":"response.output.delta","kind":"listen","metrics":{"n_tokens":1}}', "listen", None, None),
        (b'{"type":"response.output.delta","kind":"text","text":"a","chunk_index":3,"chunk_usage":{}}', "text", "a", None),
        (b'{"type":"response.output.delta","kind":"audio","audio":"AACAPg=="}', "audio", None, b"\0\0\x80\x3e"),
        (b'{"type":"response.done","audio":null,"text":"all","reason":"turn_end"}', None, "all", None),
    ],
)
def test_what_a_worker_says_is_read_whatever_else_it_says(frame, kind, text, audio):
    said = minicpmo_backend.decode_event(frame)
    assert (said.kind, said.text, said.audio) == (kind, text, audio)


@pytest.mark.parametrize("frame", [b"", b"[]", b"{}", b'{"type":1}', b'{"type":"x","audio":"?"}', b'{"type":"x","text":7}', b"\xff"])
def test_what_is_no_message_is_refused(frame):
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        minicpmo_backend.decode_event(frame)
