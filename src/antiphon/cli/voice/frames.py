"""Pictures for a session with video: JPEG files in a folder, or a film."""

import glob
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.cli.common.shell import UsageError
from antiphon.installation import install_hint

if TYPE_CHECKING:
    import av

_SUFFIXES = (".jpg", ".jpeg")

MAX_PICTURES = 600
"""One for every second of the longest session."""

MAX_WIDTH_PX = 640
"""Of a film's pictures; models scale down further."""


def read_pictures(source: str, folder: Path) -> list[bytes]:
    """
    Read JPEG files, one for every second.

    Args:
        source: a folder of JPEG files, a pattern such as `frames/*.jpg`, or a film.
        folder: the base of relative paths.

    Raises:
        UsageError: there are none, or they can't be read.
    """
    path = folder / source
    try:
        if path.is_dir():
            pictures = [file.read_bytes() for file in sorted(path.iterdir()) if file.suffix.lower() in _SUFFIXES]
        elif path.is_file() and path.suffix.lower() not in _SUFFIXES:
            pictures = _read_film(path, source)
        else:
            pictures = [Path(name).read_bytes() for name in sorted(glob.glob(str(path)))]
    except OSError as error:
        raise UsageError(f"{source} can't be read: {error.strerror or error}.") from None
    if not pictures:
        raise UsageError(f"There are no JPEG files in {source}: it takes a folder of them, a pattern such as 'frames/*.jpg', or a film.")
    return pictures[:MAX_PICTURES]


def _read_film(path: Path, source: str) -> list[bytes]:
    try:
        import av  # noqa: PLC0415 - needs the extra `formats`
    except ModuleNotFoundError:
        raise UsageError(f"{source} is no folder of JPEG files, and reading films needs PyAV. {install_hint('formats')}") from None
    pictures: list[bytes] = []
    try:
        with av.open(str(path)) as film:
            for frame in film.decode(film.streams.video[0]):
                # The first frame of each second.
                if frame.pts is not None and frame.time >= len(pictures):
                    pictures.append(_encode_jpeg(frame, av.VideoCodecContext.create("mjpeg", "w")))
                    if len(pictures) == MAX_PICTURES:
                        break
    except (av.FFmpegError, IndexError) as error:
        raise UsageError(f"{source} can't be read as a film: {error}.") from None
    return pictures


def _encode_jpeg(frame: "av.VideoFrame", coder: "av.VideoCodecContext") -> bytes:
    """Encode a frame, scaled down where it is wider than `MAX_WIDTH_PX`."""
    coder.width = min(MAX_WIDTH_PX, frame.width) // 2 * 2  # even, as `yuvj420p` has half as many colours as pixels
    coder.height = max(2, round(frame.height * coder.width / frame.width) // 2 * 2)
    coder.pix_fmt, coder.time_base = "yuvj420p", Fraction(1)  # a single picture has no time
    packets = [*coder.encode(frame.reformat(coder.width, coder.height, coder.pix_fmt)), *coder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)
