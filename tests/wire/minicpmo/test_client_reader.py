"""A client's pieces of audio are read without parsing: with the same events and errors as with it, whatever the bytes."""

import base64
import json
import struct

import pytest
from hypothesis import example, given, strategies as st

from antiphon.errors import ClientError
from antiphon.wire.minicpmo import client_events, media
from antiphon.wire.minicpmo.client_reader import ClientEventReader
from support.wire.minicpmo_samples import base64_of, floats, jpeg

SOUND, OTHER = base64_of(floats(0.5, -0.5, 0.25)), base64_of(floats(0.1, 2.0))


def result(read, *arguments):
    """What a function returns, or all that its error tells."""
    try:
        return read(*arguments)
    except ClientError as error:
        return error.message, error.code, error.param, error.status


def same(frames, mode="video"):
    reader = ClientEventReader(mode)
    for frame in frames:
        expected = result(client_events.decode_client, frame, mode)
        assert reader.read_known(memoryview(frame)) in (None, expected), frame
        assert result(reader.read, frame) == expected, frame


def written(audio, before=b'{"type":"input.append","input":{"audio":"', after=b'"}}'):
    return before + (audio if isinstance(audio, bytes) else audio.encode()) + after


SOUNDS = st.sampled_from([SOUND, OTHER, "", "data:audio/x;base64," + SOUND, {"data": SOUND}, None])
HINTS = st.sampled_from([True, False, None, {"force_listen": True}])
TEXTS = st.sampled_from(["a", SOUND, OTHER, "", None])
PICTURES = st.sampled_from([None, [], [base64.b64encode(jpeg()).decode()]])
INPUT = {
    **dict.fromkeys(("audio", "audio_base64", "audio_data"), SOUNDS),
    **dict.fromkeys(("force_listen", "hints"), HINTS),
    **dict.fromkeys(("input_id", "response_id", "unknown"), TEXTS),
    "video_frames": PICTURES,
}
APPENDS = st.builds(
    lambda given, top, spaces: json.dumps({"type": "input.append", **top, "input": given}, indent=spaces).encode(),
    st.fixed_dictionaries({}, optional=INPUT),
    st.fixed_dictionaries({}, optional={"unknown": st.sampled_from([SOUND, OTHER, 'quo"te', "back\\slash"])}),
    st.sampled_from([None, 0, 2]),
)
ODD = b"", b"AAAA", b"AA==", b"AAAAAA==", b"AAAAAAAA\\", b'","audio":"AAAAAAA=', b"AAAAAA\\u003d=", b"\xff", b"AAAA AAA=", b"AAAAAAA=\n"
AUDIO = st.one_of(
    st.binary(max_size=40).map(base64.b64encode),
    st.binary(max_size=40),
    st.lists(st.floats(width=32), max_size=5).map(lambda samples: base64.b64encode(struct.pack(f"<{len(samples)}f", *samples))),
    st.sampled_from(ODD),
)


@given(frames=st.lists(APPENDS, max_size=4), audio=st.lists(AUDIO, max_size=4))
@example(frames=[json.dumps({"type": "input.append", "x": SOUND, "input": {"audio": SOUND}}).encode()], audio=[OTHER.encode()])
@example(frames=[json.dumps({"type": "input.append", "input": {"audio": OTHER, "audio_data": SOUND}}).encode()], audio=[OTHER.encode()])
@example(frames=[b'{"type":"input.append","input":{"audio":"%b","audio":"%b"}}' % (SOUND.encode(), OTHER.encode())], audio=[SOUND.encode()])
def test_whatever_comes_is_read_as_without_a_template(frames, audio):
    sent = [*frames]
    for frame in frames:  # the same frames, with something else where a string is
        pieces = frame.split(b'"')
        for number in range(1, len(pieces), 2):
            sent += [frame, *(b'"'.join([*pieces[:number], other, *pieces[number + 1 :]]) for other in audio)]
    same(sent)


@given(audio=st.lists(AUDIO, max_size=6), cut=st.integers(0, 80), more=st.binary(max_size=4))
def test_so_is_what_is_cut_or_longer(audio, cut, more):
    known = written(SOUND)
    same([known, *map(written, audio), known[:cut], known[cut:], known + more, more + known, known[:cut] + more + known[cut:]])


@pytest.mark.parametrize("extra_bytes", [-4, 0, 3, 4, 8])
def test_so_is_what_is_as_long_as_may_be(extra_bytes):
    most = media.AUDIO_LIMIT_S * media.RATE_IN_HZ * media.FLOAT_BYTES
    same([written(SOUND), written(base64.b64encode(bytes(most + extra_bytes)))])


def test_a_known_form_is_not_parsed_again():
    parsed = []

    def decode(frame, mode):
        parsed.append(frame)
        return client_events.decode_client(frame, mode)

    reader = ClientEventReader("audio", decode)
    for sound in (SOUND, OTHER, SOUND, OTHER):
        assert reader.read(written(sound)).pcm == media.from_floats(base64.b64decode(sound))
    assert len(parsed) == 2  # the first frame, and the proof of what was learned


def test_one_who_numbers_what_it_sends_is_read_all_the_same():
    given = [{"audio": SOUND, "input_id": str(number)} for number in range(40)]
    same([json.dumps({"type": "input.append", "input": each}).encode() for each in given], "audio")
