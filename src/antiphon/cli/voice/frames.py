"""Pictures for a session that sees: JPEG files in a folder, or a film."""

import glob
from pathlib import Path
from typing import Any

from antiphon.cli.common.shell import UsageError

_SUFFIXES = (".jpg", ".jpeg")

MAX_PICTURES = 600
"""The most pictures: as many as seconds of the longest session."""

MAX_WIDTH_PX = 640
"""Pixels of a film's picture; models look at less."""


def read_pictures(source: str, folder: Path) -> list[bytes]:
    """
    JPEG files, one for every second.

    Args:
        given: a folder of JPEG files, a pattern such as `frames/*.jpg`, or a film.
        folder: what relative paths start from.

    Raises:
        UsageError: there is no such thing, or nothing in it.
    """
    path = folder / source
    try:
        if path.is_dir():
            found = [each.read_bytes() for each in sorted(path.iterdir()) if each.suffix.lower() in _SUFFIXES]
        elif path.is_file() and path.suffix.lower() not in _SUFFIXES:
            found = _read_film(path)
        else:
            found = [Path(name).read_bytes() for name in sorted(glob.glob(str(path)))]
    except OSError as error:
        raise UsageError(f"{source} can't be read: {error.strerror or error}.") from None
    if not found:
        raise UsageError(f"There are no JPEG files in {source}: it takes a folder of them, a pattern such as 'frames/*.jpg', or a film.")
    return found[:MAX_PICTURES]


def _read_film(path: Path) -> list[bytes]:
    """
    One picture for every second of a film.

    Raises:
        UsageError: it can't be read, or what reads films is not here.
    """
    try:
        import av  # noqa: PLC0415 - an extra, which most do without
    except ModuleNotFoundError:
        raise UsageError(
            f"{path.name} is no folder of JPEG files, and to read films PyAV is needed: pip install 'antiphon[formats]'."
        ) from None
    try:
        with av.open(str(path)) as film:
            return _picture_each_second(av, film)
    except (av.FFmpegError, IndexError) as error:
        raise UsageError(f"{path.name} is no film that can be read: {error}.") from None


def _picture_each_second(av: Any, film: Any) -> list[bytes]:
    taken: list[bytes] = []
    for frame in film.decode(film.streams.video[0]):
        if frame.time is not None and frame.time >= len(taken):
            taken.append(_encode_jpeg(av, frame))
            if len(taken) == MAX_PICTURES:
                break
    return taken


def _encode_jpeg(av: Any, frame: Any) -> bytes:
    """The picture as a file; not larger than it is."""
    width = min(MAX_WIDTH_PX, frame.width) // 2 * 2
    height = max(2, round(frame.height * width / frame.width) // 2 * 2)
    coder = av.CodecContext.create("mjpeg", "w")
    coder.width, coder.height, coder.pix_fmt, coder.time_base = width, height, "yuvj420p", frame.time_base
    packets = [*coder.encode(frame.reformat(width, height, "yuvj420p")), *coder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)
