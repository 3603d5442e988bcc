"""Sound and pictures are what they should be, or are refused."""

import json
import math
import struct

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.wire.minicpmo import media
from support.wire.minicpmo_samples import base64_of, floats, jpeg

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


def as_json(value):
    return json.dumps(value).encode()


def samples(pcm):
    return struct.unpack(f"<{len(pcm) // 2}h", pcm)


@pytest.fixture(params=["numpy", "plain"])
def converted(request):
    """Both ways in which samples are converted."""
    numpy = media._numpy()
    if request.param == "numpy":
        assert numpy is not None
        return lambda sound: media._from_floats_numpy(numpy, sound)
    return media._from_floats_plain


def test_samples_keep_their_place_between_silence_and_full_scale(converted):
    assert samples(converted(floats(0, 0.5, -0.5, 1 / 32768, -1))) == (0, 16384, -16384, 1, -32768)


def test_what_is_louder_than_full_scale_is_cut_off_there(converted):
    assert samples(converted(floats(1, 1.5, -7, 3e38, -3e38))) == (32767, 32767, -32768, 32767, -32768)


@pytest.mark.parametrize("sample", [math.nan, math.inf, -math.inf])
def test_a_sample_that_is_no_number_spoils_the_sound(converted, sample):
    assert converted(floats(0, sample, 0)) is None
    assert converted(floats(math.inf, -math.inf)) is None


def test_no_samples_are_no_sound(converted):
    assert converted(b"") == b""


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=50))
def test_both_ways_come_to_the_same(values):
    sound = floats(*values)
    assert media._from_floats_numpy(media._numpy(), sound) == media._from_floats_plain(sound)


@given(st.lists(st.integers(-32768, 32767), max_size=50))
def test_sound_comes_back_as_it_was(numbers):
    pcm = struct.pack(f"<{len(numbers)}h", *numbers)
    assert media.from_floats(media.to_floats(pcm)) == pcm
    assert media._to_floats_plain(pcm) == media.to_floats(pcm)


@pytest.mark.parametrize(
    "value",
    [
        "AAEC",
        "data:audio/pcm;base64,AAEC",
        {"data": "AAEC"},
        {"base64": "AAEC"},
        {"audio_base64": "AAEC"},
        {"audio_data": "data:;base64,AAEC", "format": "f32"},
    ],
)
def test_base64_is_found_wherever_clients_put_it(value):
    assert media.decode_base64(as_json(value), "x", 3) == b"\0\1\2"


def test_slashes_may_be_escaped():
    assert media.decode_base64(rb'"data:audio\/pcm;base64,\/\/8="', "x", 3) == b"\xff\xff"
    assert media.validate_base64(rb'"\/\/8="', "x", 3) == "//8="


@pytest.mark.parametrize(
    "value", ["AAE", "A A=", "????", "AAAA====", "data:AAEC", 7, None, [], {}, {"data": 7}, {"data": {"data": "AAEC"}}]
)
def test_what_is_no_base64_is_refused_by_name(value):
    with pytest.raises(ClientError) as refused:
        media.decode_base64(as_json(value), "input.audio", 100)
    assert refused.value.param.startswith("input.audio")
    assert refused.value.code in ("invalid_payload", "missing_field")


def test_what_is_too_large_is_refused_before_it_is_decoded():
    with pytest.raises(ClientError, match="at most 10 bytes, but got 15"):
        media.decode_base64(as_json("?" * 20), "input.audio", 10)


def test_half_a_sample_is_refused():
    with pytest.raises(ClientError, match="float32 samples of 4 bytes each, but got 6 bytes"):
        media.decode_audio(as_json(base64_of(bytes(6))), "input.audio", 1)


def test_a_wav_file_is_not_taken_for_noise():
    with pytest.raises(ClientError, match="but got a WAV file"):
        media.decode_audio(as_json(base64_of(b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0")), "payload.voice.ref_audio_base64", 1)


def test_sound_may_be_as_long_as_it_may_be_and_no_longer():
    assert media.decode_audio(as_json(base64_of(bytes(64_000))), "input.audio", 1) == bytes(32_000)
    with pytest.raises(ClientError, match="at most 64000 bytes"):
        media.decode_audio(as_json(base64_of(bytes(64_004))), "input.audio", 1)


def test_a_picture_is_a_jpeg_file():
    assert media.decode_frame(as_json(base64_of(jpeg())), "frame") == jpeg()
    filled = jpeg().replace(b"\xff\xc0", b"\xff\xff\xff\xc2")
    assert media.decode_frame(as_json(base64_of(filled)), "frame") == filled


@pytest.mark.parametrize("follows", [bytes(511), b"\0\0\0\x18ftypmp42", jpeg()], ids=["zeros", "a film", "another picture"])
def test_what_follows_the_end_of_a_picture_is_the_cameras_own_affair(follows):
    assert media.decode_frame(as_json(base64_of(jpeg() + follows)), "frame") == jpeg() + follows


def thumbnailed():
    """A picture with a small one in its head, which has an end of its own."""
    return jpeg()[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(jpeg())) + jpeg() + jpeg()[2:]


CUT_OFF = [jpeg()[:-2], jpeg()[:-1], thumbnailed()[:-1]]


def test_a_picture_may_have_a_small_one_in_its_head():
    assert media.decode_frame(as_json(base64_of(thumbnailed())), "frame") == thumbnailed()


@pytest.mark.parametrize("content", [b"", PNG, b"\xff\xd8\xff", b"\xff\xd8" + bytes(40), jpeg()[:20], jpeg(0, 5), *CUT_OFF])
def test_what_is_no_picture_is_refused(content):
    with pytest.raises(ClientError) as refused:
        media.decode_frame(as_json(base64_of(content)), "input.video_frames[0]")
    assert refused.value.param == "input.video_frames[0]"


def test_a_small_file_of_a_very_large_picture_is_refused():
    with pytest.raises(ClientError, match="at most 16777216 pixels, but got 4294836225"):
        media.decode_frame(as_json(base64_of(jpeg(65535, 65535))), "frame")


@given(st.binary(max_size=60))
def test_no_file_makes_the_search_for_its_size_go_wrong(content):
    assert media._pixel_count(b"\xff\xd8\xff" + content) is None or content


@pytest.mark.parametrize(("content", "kind"), [(jpeg(), "jpeg"), (PNG, "png"), (b"GIF89a", "gif"), (b"RIFF\0\0\0\0WEBPVP8 ", "webp")])
def test_a_picture_in_a_message_may_be_of_several_formats(content, kind):
    assert media.image_data_url(as_json(base64_of(content)), "x") == f"data:image/{kind};base64,{base64_of(content)}"


def test_other_files_are_no_pictures():
    with pytest.raises(ClientError, match="JPEG, PNG, GIF, or WebP"):
        media.image_data_url(as_json(base64_of(b"%PDF-1.7")), "x")
