"""What a film is made of, and in which format players take it."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from antiphon.runtime.export.pictures import Shot
from antiphon.runtime.export.subtitles import Caption

WIDTH, HEIGHT, FRAMES_PER_S = 960, 540, 10
"""Pictures are scaled to fit, with bars beside them. Cameras in conversations send one to five a second."""

MAX_PICTURE_PIXELS = 40_000_000
"""A picture of a few bytes may claim a size that takes gigabytes."""

SOUND_RATE_HZ = 48_000
"""The rate that all players take, and the only one of Opus in most."""

PLAIN_LEVEL = 32
"""The dark grey of the picture that is shown where there is none, as the luma of a pixel."""

SCALE_FILTER = (
    f"scale={WIDTH}:{HEIGHT}:force_original_aspect_ratio=decrease:force_divisible_by=2",
    f"pad={WIDTH}:{HEIGHT}:(ow-iw)/2:(oh-ih)/2",
    "setsar=1",
    "format=yuv420p",
)
"""FFmpeg's filters that bring any picture into the film's size."""

MIX_FILTER = "pan=mono|c0=c0+c1"
"""FFmpeg's filter that puts the person on the left and the model on the right together, each as loud as before."""


class FilmError(Exception):
    """A film could not be made; the message says why."""


class Film(Struct, frozen=True):
    """
    What a film is made of.

    Attributes:
        shots: what is seen.
        sound: what is heard: a stereo WAV file; the person on the left, the model on the right.
        captions: what is read.
    """

    shots: Sequence[Shot]
    sound: bytes
    captions: Sequence[Caption]

    @property
    def duration_s(self) -> float:
        """How long the pictures last."""
        return sum(shot.frames for shot in self.shots) / FRAMES_PER_S


class FilmFormat(Struct, frozen=True):
    """
    A file format and its encoders, by the names that FFmpeg gives them.

    Attributes:
        suffix: of the file's name.
        container: the file format.
        video_options: for the encoder.
    """

    suffix: str
    container: str
    video: str
    audio: str
    subtitles: str
    video_options: Mapping[str, str]


_H264 = ("mp4", "mp4", "aac", "mov_text")
_WEBM = ("webm", "webm", "libopus", "webvtt")
_MATROSKA = ("mkv", "matroska", "aac", "subrip")

_FORMATS: Sequence[tuple[str, tuple[str, str, str, str], Mapping[str, str]]] = (
    ("libx264", _H264, {"preset": "veryfast", "crf": "23", "tune": "stillimage"}),
    ("libopenh264", _H264, {"b": "1000000"}),
    ("h264_videotoolbox", _H264, {"b": "1000000"}),
    ("libvpx-vp9", _WEBM, {"deadline": "realtime", "cpu-used": "8", "crf": "33", "b": "0"}),
    ("libvpx", _WEBM, {"deadline": "realtime", "cpu-used": "8", "b": "1000000"}),
    ("mpeg4", _MATROSKA, {"b": "2000000"}),
)
"""The best first: everything plays MP4 with H.264, browsers and most players WebM, and VLC and mpv the last."""


def choose_format(has_encoder: Callable[[str], bool]) -> FilmFormat | None:
    """The format that most players take, of those with all encoders; None if there is none."""
    for video, (suffix, container, audio, subtitles), options in _FORMATS:
        if all(map(has_encoder, (video, audio, subtitles))):
            return FilmFormat(suffix, container, video, audio, subtitles, MappingProxyType(options))
    return None
