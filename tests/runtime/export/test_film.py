"""A film, decoded again: its pictures, sound and subtitles, with their times."""

import functools
import math
import shutil
from array import array
from fractions import Fraction

import pytest

from antiphon.audio import wav_header
from antiphon.runtime.export import ffmpeg, film as films, pyav
from antiphon.runtime.export.formats import FRAMES_PER_S, Film, FilmError, choose_format
from antiphon.runtime.export.pictures import Shot
from antiphon.runtime.export.subtitles import Caption

av = pytest.importorskip("av")

FRAME_S = 1 / FRAMES_PER_S
CODEC_DELAY_S = 0.05
"""Encoders work on blocks of up to 21 ms (AAC at 48 kHz), and blur edges by one."""

H264, VP9 = ("libx264", "libopenh264"), ("libvpx-vp9",)
PROGRAM = shutil.which("ffmpeg")
WRITERS = {
    "pyav": (pyav.has_encoder, pyav.write),
    "ffmpeg": (ffmpeg.encoders(PROGRAM).__contains__, ffmpeg.Writer(PROGRAM or "").write),
}
writers = pytest.mark.parametrize(
    "writer", ["pyav", pytest.param("ffmpeg", marks=pytest.mark.skipif(PROGRAM is None, reason="ffmpeg is not installed"))]
)


def jpeg(level, width=320, height=240):
    """A grey picture."""
    frame = av.VideoFrame(width, height, "yuvj420p")
    for plane, value in zip(frame.planes, (level, 128, 128), strict=True):
        plane.update(bytes((value,)) * plane.buffer_size)
    codec = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = width, height, "yuvj420p", Fraction(1, 10)
    return b"".join(bytes(packet) for packet in codec.encode(frame))


def stereo(person, model, length_s):
    """A tone on either side, from when to when."""
    samples = array("h")
    for at in range(length_s * 24_000):
        samples.extend(int(8000 * math.sin(at / 5)) if begin <= at / 24_000 < end else 0 for begin, end in (person, model))
    return wav_header(24_000, 2 * len(samples), channels=2) + samples.tobytes()


def seen(path):
    """From when on which grey is in the middle of the film."""
    changes = []
    with av.open(str(path)) as file:
        for frame in file.decode(file.streams.video[0]):
            level = bytes(frame.planes[0])[frame.planes[0].line_size * (frame.height // 2) + frame.width // 2]
            if not changes or abs(level - changes[-1][1]) > 20:
                changes.append((float(frame.time), level))
    return changes


def heard(path):
    """From when to when there is sound."""
    spans, is_loud = [], False
    with av.open(str(path)) as file:
        for frame in file.decode(file.streams.audio[0]):
            levels = array("f", bytes(frame.planes[0]))[: frame.samples]
            for start in range(0, frame.samples, 240):
                if (max(map(abs, levels[start : start + 240])) > 0.1) is not is_loud:
                    is_loud = not is_loud
                    spans.append(float(frame.time) + start / frame.sample_rate)
    return list(zip(spans[::2], spans[1::2], strict=True))


def read(path):
    """The subtitles, and from when to when each is shown."""
    with av.open(str(path)) as file:
        track = file.streams.subtitles[0]
        packets = [
            (packet, b"".join(each.text or each.dialogue for each in packet.decode())) for packet in file.demux(track) if packet.size
        ]
        return [
            (float(one.pts * one.time_base), float((one.pts + one.duration) * one.time_base), text.decode())
            for one, text in packets
            if text
        ]


@functools.cache
def a_film():
    return Film(
        shots=[Shot(None, 12), Shot(jpeg(200), 20), Shot(b"\xff\xd8 no picture", 5), Shot(jpeg(120, 101, 333), 18)],
        sound=stereo((1.0, 2.0), (3.0, 4.5), 5),
        captions=[Caption(1.0, 2.0, "Person: What is a fugue?"), Caption(3.0, 4.5, "Model: A flight\nof voices.")],
    )


@writers
@pytest.mark.parametrize(
    ("without", "suffix", "codecs"),
    [
        ((), "mp4", ["h264", "aac", "mov_text"]),
        (H264, "webm", ["vp9", "opus", "webvtt"]),
        ((*H264, *VP9), "webm", ["vp8", "opus", "webvtt"]),
        ((*H264, "libopus"), "mkv", ["mpeg4", "aac", "srt"]),
    ],
)
def test_pictures_sound_and_words_come_at_their_times(tmp_path, writer, without, suffix, codecs):
    has_encoder, write = WRITERS[writer]
    file_format = choose_format(lambda name: name not in without and has_encoder(name))
    write(a_film(), file_format, tmp_path / "film")
    with av.open(str(tmp_path / "film")) as file:
        assert [stream.codec_context.name for stream in file.streams] == codecs and file_format.suffix == suffix
        assert file.duration / 1e6 == pytest.approx(a_film().duration_s, abs=FRAME_S)
    changes = seen(tmp_path / "film")
    assert [at_s for at_s, _ in changes] == pytest.approx([0.0, 1.2, 3.2, 3.7], abs=FRAME_S / 2)
    assert [level for _, level in changes] == pytest.approx([32, 200, 32, 120], abs=20)
    assert [each for span in heard(tmp_path / "film") for each in span] == pytest.approx([1.0, 2.0, 3.0, 4.5], abs=CODEC_DELAY_S)
    (first, second) = read(tmp_path / "film")
    assert first == (pytest.approx(1.0, abs=0.002), pytest.approx(2.0, abs=0.002), "Person: What is a fugue?")
    assert second[:2] == pytest.approx((3.0, 4.5), abs=0.002) and second[2].split() == ["Model:", "A", "flight", "of", "voices."]


@writers
def test_a_film_without_words_or_sound_is_one_too(tmp_path, writer):
    has_encoder, write = WRITERS[writer]
    silent = Film([Shot(None, 15)], wav_header(24_000, 0, channels=2), [])
    write(silent, choose_format(has_encoder), tmp_path / "film")
    assert seen(tmp_path / "film") == [(0.0, pytest.approx(32, abs=3))]
    with av.open(str(tmp_path / "film")) as file:
        assert not file.streams.subtitles


@writers
def test_a_picture_that_claims_a_size_beyond_all_bounds_is_not_read(tmp_path, writer):
    has_encoder, write = WRITERS[writer]
    picture = jpeg(200)
    at = picture.index(b"\xff\xc0") + 5  # behind the frame header's marker, length and precision
    claim = picture[:at] + (20_000).to_bytes(2) * 2 + picture[at + 4 :]
    write(Film([Shot(claim, 5), Shot(picture, 5)], wav_header(24_000, 0, channels=2), []), choose_format(has_encoder), tmp_path / "film")
    assert [level for _, level in seen(tmp_path / "film")] == pytest.approx([32, 200], abs=20)


@writers
def test_one_that_can_not_be_written_says_so(tmp_path, writer):
    has_encoder, write = WRITERS[writer]
    with pytest.raises(FilmError):
        write(a_film(), choose_format(has_encoder), tmp_path / "missing" / "film")


def test_markup_in_what_was_said_is_shown_as_it_was(tmp_path):
    text = "Model: a {\\b1} <i> C:\\new {x}"
    pyav.write(
        Film([Shot(None, 20)], stereo((0, 1), (1, 2), 2), [Caption(0.0, 2.0, text)]), choose_format(pyav.has_encoder), tmp_path / "film"
    )
    with av.open(str(tmp_path / "film")) as file:
        (packet,) = [bytes(packet) for packet in file.demux(file.streams.subtitles[0]) if packet.size > 2]
    assert packet[2:].decode().replace("\u2060", "") == "Model: a { \\b1} ‹i› C:\\new {x}"


def test_what_is_missing_is_named(tmp_path):
    def found(*encoders):
        rows = "\\n".join(f" V....D {name} {name}" for name in encoders)
        (program := tmp_path / "ffmpeg").write_text(f"#!/bin/sh\nprintf '{rows}\\n'\n")
        program.chmod(0o755)
        return films.find_writer(str(tmp_path), has_pyav=False)

    assert "ffmpeg on the PATH, or the extra `formats`" in films.find_writer(str(tmp_path), has_pyav=False)
    assert found("aac", "mov_text").startswith("ffmpeg here has no encoder for a film")
    assert found("libx264", "aac", "mov_text").file_format.suffix == "mp4"
    assert found("libvpx", "libopus", "webvtt", "aac", "mov_text").file_format.suffix == "webm"
    assert films.find_writer(str(tmp_path)).write is pyav.write
