"""Films by the program `ffmpeg`."""

import subprocess
import tempfile
from collections.abc import Set
from pathlib import Path
from typing import IO

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
from antiphon.runtime.export.subtitles import write_srt

_TIMEOUT_S = 60.0
"""For a program that only lists or converts one picture."""

_PICTURE_DEMUXERS = {b"\xff\xd8": "jpeg_pipe", b"\x89P": "png_pipe", b"RI": "webp_pipe"}
"""By the first two bytes of an image file."""


def encoders(program: str | None) -> Set[str]:
    """The encoders that a program has; none if it can't be run."""
    if program is None:
        return frozenset()
    try:
        listing = subprocess.run([program, "-hide_banner", "-encoders"], capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    rows = (line.split() for line in listing.stdout.decode(errors="replace").splitlines())
    return frozenset(row[1] for row in rows if len(row) > 1)


class Writer:
    """
    Makes films with one program.

    Args:
        program: where it is.
    """

    def __init__(self, program: str) -> None:
        self._program = program

    def write(self, film: Film, file_format: FilmFormat, path: Path) -> None:
        """
        Write a film to a new file.

        Raises:
            FilmError: the program fails.
        """
        with tempfile.TemporaryDirectory() as folder:
            (sound := Path(folder) / "mix.wav").write_bytes(film.sound)
            (subtitles := Path(folder) / "subtitles.srt").write_text(write_srt(film.captions), encoding="utf-8")
            (errors := Path(folder) / "errors").touch()
            command = self._command(film, file_format, sound, subtitles, path)
            try:
                # Into a file: a pipe that is not read while pictures are written would fill up, and both programs would wait for ever.
                with errors.open("wb") as log, subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log) as process:
                    assert process.stdin is not None
                    self._send_frames(film, process.stdin)
            except OSError as error:
                raise FilmError(f"ffmpeg can't be run: {error.strerror}") from None
            if process.returncode:
                raise FilmError(f"ffmpeg failed: {_last_line(errors.read_bytes())}")

    def _command(self, film: Film, file_format: FilmFormat, sound: Path, subtitles: Path, path: Path) -> list[str]:
        has_captions = bool(film.captions)
        return [
            *(self._program, "-hide_banner", "-loglevel", "error", "-y"),
            *("-f", "mjpeg", "-framerate", str(FRAMES_PER_S), "-i", "pipe:0"),
            *("-f", "wav", "-i", str(sound)),
            *(("-f", "srt", "-i", str(subtitles)) if has_captions else ()),
            *("-map", "0:v", "-map", "1:a", *(("-map", "2:s") if has_captions else ())),
            *("-vf", ",".join(SCALE_FILTER), "-c:v", file_format.video),
            *(part for name, value in file_format.video_options.items() for part in (f"-{name}:v", value)),
            *("-af", MIX_FILTER, "-ar", str(SOUND_RATE_HZ), "-c:a", file_format.audio),
            *(("-c:s", file_format.subtitles, "-metadata:s:s:0", "title=Transcript") if has_captions else ()),
            # So that a browser can begin before it has all of it.
            *(("-movflags", "+faststart") if file_format.container == "mp4" else ()),
            *("-f", file_format.container, str(path)),
        ]

    def _send_frames(self, film: Film, pipe: IO[bytes]) -> None:
        plain = self._plain_picture()
        try:
            for shot in film.shots:
                picture = plain if shot.content is None else self._to_jpeg(shot.content) or plain
                for _ in range(shot.frames):
                    pipe.write(picture)
        except BrokenPipeError:
            pass  # it has ended, and says why
        finally:
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def _plain_picture(self) -> bytes:
        grey = f"color=c=0x{PLAIN_LEVEL:02x}{PLAIN_LEVEL:02x}{PLAIN_LEVEL:02x}:s={WIDTH}x{HEIGHT}"
        picture = self._run("-f", "lavfi", "-i", grey, "-frames:v", "1", "-f", "mjpeg", "pipe:1")
        if not picture:
            raise FilmError("ffmpeg can't make a picture")
        return picture

    def _to_jpeg(self, content: bytes) -> bytes | None:
        """An image file as JPEG; None if it can't be read."""
        demuxer = _PICTURE_DEMUXERS.get(content[:2])
        if demuxer is None:
            return None
        # Each picture alone first: one that is damaged must not end the film.
        source = ("-f", demuxer, "-max_pixels", str(MAX_PICTURE_PIXELS), "-i", "pipe:0")
        return self._run(*source, "-frames:v", "1", "-q:v", "3", "-f", "mjpeg", "pipe:1", content=content)

    def _run(self, *arguments: str, content: bytes = b"") -> bytes | None:
        command = [self._program, "-hide_banner", "-loglevel", "error", *arguments]
        try:
            result = subprocess.run(command, input=content, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout if result.returncode == 0 and result.stdout else None


def _last_line(log: bytes) -> str:
    lines = log.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"
