"""Files of phones and browsers: read as they are sent, and refused where they are none."""

import io
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientMistake
from antiphon.speech.recordings import Recording

av = pytest.importorskip("av")

RATE_HZ = 48_000
TONE = (8000 * np.sin(2 * math.pi * 440 * np.arange(3 * RATE_HZ) / RATE_HZ)).astype("<i2")


BLACK = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")


def film_in(container):
    film = container.add_stream("mjpeg", rate=1)
    film.width = film.height = 64
    film.pix_fmt = "yuvj420p"
    return film


def filmed(kind, codec, *, pictures=False):
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


FILES = {
    "m4a": filmed("mp4", "aac"),
    "mp4 with pictures": filmed("mp4", "aac", pictures=True),
    "webm of a browser": filmed("webm", "libopus"),
    "aac": filmed("adts", "aac"),
}


def sound_of(file):
    return np.frombuffer(b"".join(iter(Recording(file).read, b"")), "<i2").astype(np.float32)


@pytest.mark.parametrize("name", FILES)
def test_the_sound_of_a_phone_or_a_browser_is_read(name):
    sound = sound_of(FILES[name])
    assert len(sound) / 16_000 == pytest.approx(3, abs=0.1)
    middle = sound[8_000:-8_000]
    assert np.abs(np.fft.rfft(middle)).argmax() * 16_000 / len(middle) == pytest.approx(440, abs=2)
    assert math.sqrt(2 * float(np.mean(np.square(middle)))) == pytest.approx(8000, rel=0.1)


def test_a_file_that_is_too_long_is_refused():
    recording = Recording(FILES["m4a"], longest_s=1)
    with pytest.raises(ClientMistake, match="longer than 1 seconds"):
        list(iter(recording.read, b""))


def test_a_film_without_sound_is_refused():
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        container.mux(film_in(container).encode(BLACK))
    with pytest.raises(ClientMistake, match="corrupted or unsupported"):
        sound_of(out.getvalue())


@given(st.sampled_from(sorted(FILES)), st.integers(0, 30_000), st.binary(max_size=200))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(name, at, junk):
    file = FILES[name][:at] + junk + FILES[name][at + len(junk) + 1 :]
    try:
        sound_of(file)
    except ClientMistake as mistake:
        assert mistake.param == "file"
