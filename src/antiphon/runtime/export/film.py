"""
A recording as one film: the client's pictures, the sound of both sides, and subtitles as a track.

It is made by PyAV, which the extra `formats` installs, or by the program `ffmpeg`.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from antiphon.runtime.export import ffmpeg, pyav
from antiphon.runtime.export.formats import Film, FilmFormat, choose_format

MISSING_TOOL = "a film needs the program ffmpeg on the PATH, or the extra `formats`"
MISSING_ENCODER = "{tool} here has no encoder for a film: it takes one of H.264, VP9, VP8 and MPEG-4, and one of AAC and Opus"


class WriteFilm(Protocol):
    """Writes a film to a new file."""

    def __call__(self, film: Film, file_format: FilmFormat, path: Path) -> None:
        """
        Write it.

        Raises:
            FilmError: it can't be made.
        """


class FilmWriter(Struct, frozen=True):
    """What can make films here, and in which format."""

    file_format: FilmFormat
    write: WriteFilm


def find_writer(path: str | None, *, has_pyav: bool | None = None) -> FilmWriter | str:
    """
    What can make films here, or else what is missing.

    Args:
        path: the folders to search for `ffmpeg`, as `PATH` has them.
        has_pyav: whether to use PyAV; None for where it is installed.
    """
    missing = MISSING_TOOL
    program = shutil.which("ffmpeg", path=path)
    tools: Sequence[tuple[str, bool, Callable[[str], bool], WriteFilm]] = (
        ("PyAV", pyav.is_available() if has_pyav is None else has_pyav, pyav.has_encoder, pyav.write),
        ("ffmpeg", program is not None, ffmpeg.encoders(program).__contains__, ffmpeg.Writer(program or "").write),
    )
    for name, is_available, has_encoder, write in tools:
        if is_available:
            if (file_format := choose_format(has_encoder)) is not None:
                return FilmWriter(file_format, write)
            missing = MISSING_ENCODER.format(tool=name)
    return missing
