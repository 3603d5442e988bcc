"""Pictures for sessions that see."""

import numpy as np
import pytest

from antiphon.cli.common.shell import UsageError
from antiphon.cli.voice.frames import read_pictures
from antiphon.wire.minicpmo.media import check_jpeg

av = pytest.importorskip("av")

GREY = np.full((720, 1280, 3), 127, np.uint8)


def film(path, seconds, rate=5):
    """A film in which nothing moves."""
    with av.open(str(path), "w") as made:
        stream = made.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        for _ in range(int(seconds * rate)):
            made.mux(stream.encode(av.VideoFrame.from_ndarray(GREY, format="rgb24")))
        made.mux(stream.encode(None))
    return path


def test_a_film_gives_one_small_picture_for_every_second(tmp_path):
    film(tmp_path / "clip.mp4", 2.6)
    found = read_pictures("clip.mp4", tmp_path)
    assert len(found) == 3
    for jpeg in found:
        check_jpeg(jpeg, "picture")
        assert len(jpeg) < 100_000


def test_pictures_of_a_folder_are_in_the_order_of_their_names(tmp_path):
    for name in ("2.jpg", "1.JPEG", "3.png"):
        (tmp_path / name).write_bytes(name.encode())
    assert read_pictures(".", tmp_path) == [b"1.JPEG", b"2.jpg"]


def test_what_is_no_film_is_told(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no film")
    with pytest.raises(UsageError, match=r"clip\.mp4 can't be read as a film"):
        read_pictures("clip.mp4", tmp_path)
