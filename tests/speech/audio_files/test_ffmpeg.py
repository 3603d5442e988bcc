"""Files of phones and browsers: read as they are sent, and refused where they are none."""

import functools
import io
import math
from struct import pack

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.speech.audio_files.decode import AudioFileReader

av = pytest.importorskip("av")

RATE_HZ = 48_000
TONE = (8000 * np.sin(2 * math.pi * 440 * np.arange(3 * RATE_HZ) / RATE_HZ)).astype("<i2")


BLACK = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")


def film_in(container):
    film = container.add_stream("mjpeg", rate=1)
    film.width = film.height = 64
    film.pix_fmt = "yuvj420p"
    return film


@functools.cache
def filmed(kind, codec, pictures=False):
    """A file with the tone in it."""
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        film = film_in(container) if pictures else None
        stream = container.add_stream(codec, rate=RATE_HZ, layout="mono")
        if film is not None:
            container.mux(film.encode(BLACK))
        frame = av.AudioFrame.from_ndarray(TONE[None], format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        waiting = av.AudioFifo()
        for made in av.AudioResampler(format=stream.format.name, layout="mono", rate=RATE_HZ).resample(frame):
            waiting.write(made)
        while (piece := waiting.read(stream.codec_context.frame_size or 1024, partial=True)) is not None:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return out.getvalue()


KINDS = {
    "m4a": ("mp4", "aac"),
    "mp4 with mp3 in it": ("mp4", "libmp3lame"),
    "mp4 with pictures": ("mp4", "aac", True),
    "webm of a browser": ("webm", "libopus"),
    "aac": ("adts", "aac"),
}


def sound_of(file):
    return np.frombuffer(b"".join(iter(AudioFileReader(file).read, b"")), "<i2").astype(np.float32)


@pytest.mark.parametrize("name", KINDS)
def test_the_sound_of_a_phone_or_a_browser_is_read(name):
    sound = sound_of(filmed(*KINDS[name]))
    assert len(sound) / 16_000 == pytest.approx(3, abs=0.1)
    middle = sound[8_000:-8_000]
    assert np.abs(np.fft.rfft(middle)).argmax() * 16_000 / len(middle) == pytest.approx(440, abs=2)
    assert math.sqrt(2 * float(np.mean(np.square(middle)))) == pytest.approx(8000, rel=0.1)


def test_a_file_that_is_too_long_is_refused():
    recording = AudioFileReader(filmed("mp4", "aac"), max_duration_s=1)
    with pytest.raises(ClientError, match="longer than 1 seconds"):
        list(iter(recording.read, b""))


def test_a_film_without_sound_is_refused():
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        container.mux(film_in(container).encode(BLACK))
    with pytest.raises(ClientError, match="corrupted or unsupported"):
        sound_of(out.getvalue())


def crc_of(content, polynomial, bits):
    rest = 0
    for byte in content:
        rest ^= byte << (bits - 8)
        for _ in range(8):
            rest = (rest << 1 ^ (polynomial if rest >> (bits - 1) else 0)) & ((1 << bits) - 1)
    return rest.to_bytes(bits // 8, "big")


def silent_flac(rate_hz, channels=1, frames=20):
    """A file of frames that take 3 bytes for a channel, however long they say they are."""
    most = 0xFFFF
    stream = pack(">HH6xQ16x", most, most, rate_hz << 44 | (channels - 1) << 41 | 15 << 36 | most * frames)
    made = b"fLaC\x80" + len(stream).to_bytes(3, "big") + stream
    for number in range(frames):
        head = pack(">HBBBHH", 0xFFF8, 0x7D, (channels - 1) << 4 | 0x08, number, most - 1, rate_hz)
        frame = head + crc_of(head, 0x07, 8) + bytes(3) * channels
        made += frame + crc_of(frame, 0x8005, 16)
    return made


def repacked(file, kind):
    """The same sound in another kind of file."""
    out = io.BytesIO()
    with av.open(io.BytesIO(file)) as source, av.open(out, "w", format=kind) as container:
        stream = container.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                container.mux(packet)
    return out.getvalue()


def test_the_largest_frames_that_there_are_can_be_read():
    assert len(sound_of(repacked(silent_flac(16_000, channels=8), "matroska"))) == 20 * 0xFFFF


@pytest.mark.parametrize("kind", ["mp4", "matroska"])
def test_a_small_file_that_says_it_lasts_for_weeks_takes_neither_memory_nor_time(kind):
    assert len(sound_of(repacked(silent_flac(16_000), kind))) == 20 * 0xFFFF
    with pytest.raises(ClientError, match="1 channels of 1 samples a second"):
        sound_of(repacked(silent_flac(1), kind))


def test_a_title_in_no_known_alphabet_is_not_looked_at():
    out = io.BytesIO()
    with av.open(out, "w", format="matroska", metadata_encoding="latin-1") as container:
        container.metadata["title"] = "Caf\u00e9"
        stream = container.add_stream("libopus", rate=RATE_HZ, layout="mono")
        frame = av.AudioFrame.from_ndarray(TONE[None, :960], format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert len(sound_of(out.getvalue()))


def test_a_track_of_an_encoding_that_nobody_knows_is_refused():
    with pytest.raises(ClientError, match="corrupted or unsupported"):
        sound_of(filmed(*KINDS["webm of a browser"]).replace(b"A_OPUS", b"A_OPUZ"))


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 30_000), st.binary(max_size=200))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(name, at, junk):
    file = filmed(*KINDS[name])[:at] + junk + filmed(*KINDS[name])[at + len(junk) + 1 :]
    try:
        sound_of(file)
    except ClientError as mistake:
        assert mistake.param == "file"
