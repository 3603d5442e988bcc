"""
Films by PyAV, which is FFmpeg's libraries.

Pictures come from strangers: each is read only as the format that its first bytes show, and one that can't be read is
left out.
"""

import importlib.util
import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.audio import WAV_HEADER_BYTES
from antiphon.runtime.export.formats import (
    FRAMES_PER_S,
    HEIGHT,
    MAX_PICTURE_PIXELS,
    MIX_FILTER,
    PLAIN_LEVEL,
    SCALE_FILTER,
    SOUND_RATE_HZ,
    WIDTH,
    Film,
    FilmError,
    FilmFormat,
)
from antiphon.runtime.export.subtitles import escape_formatting
from antiphon.runtime.recording.timeline import RATE_HZ

if TYPE_CHECKING:
    import av

_STEREO_BYTES = 4
_PICTURE_FORMATS = {b"\xff\xd8": ("jpeg_pipe", "mjpeg"), b"\x89P": ("png_pipe", "png"), b"RI": ("webp_pipe", "webp")}
"""Demuxer and decoder by the first two bytes of an image file."""

_MS = Fraction(1, 1000)

# The text encoders of FFmpeg take dialogue of SubStation Alpha, and need the header of such a file.
_ASS_HEADER = (
    b"[Script Info]\r\nScriptType: v4.00+\r\n\r\n[V4+ Styles]\r\n"
    b"Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, StrikeOut, "
    b"ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding\r\n"
    b"Style: Default,Arial,16,&Hffffff,&Hffffff,&H0,&H0,0,0,0,0,100,100,0,0,1,1,0,2,10,10,10,0\r\n\r\n"
    b"[Events]\r\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\r\n"
)


def is_available() -> bool:
    """Whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


def has_encoder(name: str) -> bool:
    """Whether PyAV has an encoder of that name."""
    import av  # noqa: PLC0415 - 60 MB of native code, and an extra

    try:
        return bool(av.codec.Codec(name, "w").is_encoder)
    except (av.FFmpegError, ValueError):
        return False


def write(film: Film, file_format: FilmFormat, path: Path) -> None:
    """
    Write a film to a new file.

    Raises:
        FilmError: it can't be encoded, or written.
    """
    import av  # noqa: PLC0415 - as above

    try:
        with av.open(str(path), "w", format=file_format.container, options=_container_options(file_format)) as container:
            _FilmFile(container, film, file_format).write()
    except (av.FFmpegError, OSError, ValueError) as error:
        raise FilmError(f"the film can't be made: {error}") from None


def _container_options(file_format: FilmFormat) -> dict[str, str]:
    # So that a browser can begin before it has all of it.
    return {"movflags": "+faststart"} if file_format.container == "mp4" else {}


class _FilmFile:
    """A film being written: a second of pictures, sound and subtitles after the other, as players read them."""

    def __init__(self, container: "av.container.OutputContainer", film: Film, file_format: FilmFormat) -> None:
        self._container = container
        self._film = film
        add_stream: Any = container.add_stream  # typed for all kinds of streams at once
        self._video = add_stream(file_format.video, rate=FRAMES_PER_S, options=dict(file_format.video_options))
        self._video.width, self._video.height, self._video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        self._audio = add_stream(file_format.audio, rate=SOUND_RATE_HZ, layout="mono")
        self._captions = iter(film.captions)
        self._next_caption = next(self._captions, None)
        if self._next_caption is not None:
            self._subtitles = add_stream(file_format.subtitles)
            self._subtitles.codec_context.subtitle_header = _ASS_HEADER
            self._subtitles.time_base = self._subtitles.codec_context.time_base = _MS
            self._subtitles.metadata["title"] = "Transcript"

    def write(self) -> None:
        sounds = _sound_frames(self._film)
        for index, frame in enumerate(_video_frames(self._film)):
            frame.pts, frame.time_base = index, Fraction(1, FRAMES_PER_S)
            self._container.mux(self._video.encode(frame))
            if index % FRAMES_PER_S == 0:
                self._write_captions(index / FRAMES_PER_S + 1)
                if (sound := next(sounds, None)) is not None:
                    self._write_sound(sound)
        for sound in sounds:
            self._write_sound(sound)
        self._write_captions(float("inf"))
        self._container.mux(self._video.encode(None))
        self._container.mux(self._audio.encode(None))

    def _write_sound(self, frames: "list[av.AudioFrame]") -> None:
        for frame in frames:
            self._container.mux(self._audio.encode(frame))

    def _write_captions(self, until_s: float) -> None:
        import av.subtitles.subtitle  # noqa: PLC0415 - as above

        while (caption := self._next_caption) is not None and caption.start_s < until_s:
            start_ms, end_ms = round(caption.start_s * 1000), round(caption.end_s * 1000)
            dialogue = f"0,0,Default,,0,0,0,,{_escape_ass(caption.text)}".encode()
            subtitle = av.subtitles.subtitle.SubtitleSet.create(dialogue, 0, end_ms - start_ms, start_ms)
            packet = self._subtitles.codec_context.encode_subtitle(subtitle)
            packet.stream, packet.time_base, packet.duration = self._subtitles, _MS, end_ms - start_ms
            self._container.mux(packet)
            self._next_caption = next(self._captions, None)


def _escape_ass(text: str) -> str:
    # A word joiner, which nobody sees, keeps a backslash from being read together with what follows.
    return escape_formatting(text).replace("\\", "\\\u2060").replace("\n", "\\N")


def _video_frames(film: Film) -> "Iterator[av.VideoFrame]":
    plain = _plain_frame()
    for shot in film.shots:
        frame = plain if shot.content is None else _read_picture(shot.content) or plain
        for _ in range(shot.frames):
            yield frame


def _plain_frame() -> "av.VideoFrame":
    import av  # noqa: PLC0415 - as above

    frame = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
    for plane, level in zip(frame.planes, (PLAIN_LEVEL, 128, 128), strict=True):
        plane.update(bytes((level,)) * plane.buffer_size)
    return frame


def _read_picture(content: bytes) -> "av.VideoFrame | None":
    """A picture in the film's size; None if it can't be read."""
    import av  # noqa: PLC0415 - as above

    demuxer, decoder = _PICTURE_FORMATS.get(content[:2], (None, ""))
    if demuxer is None:
        return None
    try:
        with av.open(io.BytesIO(content), "r", format=demuxer, options={"codec_whitelist": decoder}) as container:
            track = container.streams.video[0]
            track.codec_context.options = {"max_pixels": str(MAX_PICTURE_PIXELS)}
            frame = next(container.decode(track), None)
            return None if frame is None else _scale(frame)
    except (av.FFmpegError, OSError, ValueError, IndexError):
        return None


def _scale(frame: "av.VideoFrame") -> "av.VideoFrame":
    import av  # noqa: PLC0415 - as above

    graph = av.filter.Graph()
    nodes = [graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=_MS)]
    nodes += [graph.add(*text.split("=", 1)) for text in SCALE_FILTER]
    graph.link_nodes(*nodes, graph.add("buffersink")).configure()
    frame.pts = 0
    graph.push(frame)
    return graph.vpull()


def _sound_frames(film: Film) -> "Iterator[list[av.AudioFrame]]":
    """The mixed sound, a second at a time, in frames as the encoder takes them."""
    import av  # noqa: PLC0415 - as above

    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=RATE_HZ, format="s16", layout="stereo", time_base=Fraction(1, RATE_HZ))
    nodes = [source, graph.add(*MIX_FILTER.split("=", 1)), graph.add("aresample", str(SOUND_RATE_HZ))]
    graph.link_nodes(*nodes, graph.add("abuffersink")).configure()
    pts = 0
    second = RATE_HZ * _STEREO_BYTES
    for start in range(WAV_HEADER_BYTES, len(film.sound), second):
        pcm = film.sound[start : start + second]
        frame = av.AudioFrame(format="s16", layout="stereo", samples=len(pcm) // _STEREO_BYTES)
        # A plane is padded to a multiple of the processor's vectors, and takes only its full size.
        frame.planes[0].update(pcm.ljust(frame.planes[0].buffer_size, b"\0"))
        frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, pts, Fraction(1, RATE_HZ)
        pts += frame.samples
        graph.push(frame)
        yield list(_pull(graph))
    graph.push(None)
    yield list(_pull(graph))


def _pull(graph: "av.filter.Graph") -> "Iterator[av.AudioFrame]":
    import av  # noqa: PLC0415 - as above

    while True:
        try:
            frame: Any = graph.pull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return
        yield frame
