"""
The files of one recording while it is made, and their repair after a server died.

Files only grow, and each is complete at any moment except for its tail: a line without its end, half a sample. `repair`
cuts that off, so that what was written can be read and played whenever the process was killed. `meta.json` has its
final size from the start and is overwritten in place: it can still be updated when the disk is full.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, WAV_HEADER_BYTES, streaming_wav_header, wav_file, wav_header
from antiphon.records import SessionRecord
from antiphon.runtime.recording.events import (
    IMAGE_SUFFIXES,
    IN,
    MEDIA_KEY,
    OUT,
    TO_PCM,
    AudioEncoding,
    EventDirection,
    EventFields,
    LineDirection,
    MediaSinks,
    audio_encodings,
    extract_media,
)
from antiphon.runtime.recording.minicpmo import AudioAttachment, ImageFile

META, EVENTS = "meta.json", "events.jsonl"
_META_BYTES = 4096
_BLOCK_BYTES = 1 << 16


class EventLine(Struct, frozen=True):
    """
    One event of a recording.

    Attributes:
        seq: 1 for the first.
        at_s: seconds after the start of the recording.
        direction: `in` from the client, `out` to it, `internal` what the server knows and did not send.
        event: as on the wire, with references in place of its media.
    """

    seq: int
    at_s: float
    direction: str
    event: dict[str, object]

    @property
    def fields(self) -> EventFields:
        """The event's fields that are known here."""
        return cast(EventFields, self.event)


_line_decoder: msgspec.json.Decoder[EventLine] = msgspec.json.Decoder(EventLine)
_record_decoder: msgspec.json.Decoder[SessionRecord] = msgspec.json.Decoder(SessionRecord)
_encode = msgspec.json.Encoder().encode


class RecordingFiles:
    """
    Writes the files of one session.

    Args:
        folder: its own folder; created by `begin`.
        encodings: of the audio in each direction.

    Attributes:
        bytes: how much was written.
    """

    def __init__(self, folder: Path, encodings: Mapping[EventDirection, AudioEncoding]) -> None:
        self.folder = folder
        self.bytes = 0
        self._encodings = dict(encodings)
        self._tracks: dict[str, _AudioTrack] = {}
        self._pending: dict[str, list[bytes]] = {}
        self._track_counts: dict[str, int] = {}
        self._seq = self._image_count = self._attachment_count = 0
        self._media_sinks = {
            direction: MediaSinks(partial(self._add_audio, direction), self._add_image, self._add_attachment) for direction in (IN, OUT)
        }

    def begin(self, record: SessionRecord) -> None:
        """Create the folder, with the session's record in it."""
        # For this user alone, as recordings have people's voices in them.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_meta(self.folder, record)

    def add(self, at_s: float, direction: LineDirection, event: EventFields) -> None:
        """Add an event; the next `write` writes it."""
        self._encodings.update(audio_encodings(event))
        self._seq += 1
        line = EventLine(self._seq, round(at_s, 4), direction, extract_media(event, self._media_sinks[OUT if direction == OUT else IN]))
        self._pending.setdefault(EVENTS, []).append(_encode(line) + b"\n")

    def write(self) -> None:
        """
        Append what was added: audio before the lines that refer to it.

        Raises:
            OSError: the disk is full; as much as it has room for was written.
        """
        pending, self._pending = self._pending, {}
        lines = pending.pop(EVENTS, ())
        for name, chunks in (*pending.items(), (EVENTS, lines)):
            content = b"".join(chunks)
            _append(self.folder / name, content)
            self.bytes += len(content)

    def _add_audio(self, direction: EventDirection, chunk: bytes) -> dict[str, object]:
        encoding = self._encodings[direction]
        track = self._tracks.get(direction)
        if track is None or track.rate_hz != encoding.rate_hz:
            track = self._tracks[direction] = self._new_track(direction, encoding.rate_hz)
        pcm = chunk if encoding.is_pcm_in_events else TO_PCM[encoding.name](chunk)
        offset, track.bytes = track.bytes, track.bytes + len(pcm)
        self._pending.setdefault(track.name, []).append(pcm)
        return {MEDIA_KEY: track.name, "offset": offset, "bytes": len(pcm), "form": encoding.name}

    def _new_track(self, direction: EventDirection, rate_hz: int) -> "_AudioTrack":
        """Start another audio file: a WAV file has a single sample rate."""
        count = self._track_counts[direction] = self._track_counts.get(direction, 0) + 1
        name = f"{direction}.wav" if count == 1 else f"{direction}-{count}.wav"
        self._pending.setdefault(name, []).append(streaming_wav_header(rate_hz))
        return _AudioTrack(name, rate_hz)

    def _add_image(self, image: ImageFile) -> dict[str, object]:
        self._image_count += 1
        name = f"frames/{self._image_count:06}.{IMAGE_SUFFIXES[image.form]}"
        self._pending.setdefault(name, []).append(image.content)
        return {MEDIA_KEY: name, "bytes": len(image.content), "form": image.form}

    def _add_attachment(self, attachment: AudioAttachment) -> dict[str, object]:
        self._attachment_count += 1
        name = f"asides/{self._attachment_count:06}.wav"
        self._pending[name] = [wav_file(attachment.pcm, attachment.rate_hz)]
        return {MEDIA_KEY: name, "offset": 0, "bytes": len(attachment.pcm), "form": "float32"}


class _AudioTrack(Struct):
    """An audio file, and the bytes of PCM in it."""

    name: str
    rate_hz: int
    bytes: int = 0


def _append(path: Path, content: bytes) -> None:
    if not content:
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # Opened for each write: recorded sessions keep no file open, as the number of open files is limited.
    with path.open("ab", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]


def write_meta(folder: Path, record: SessionRecord) -> None:
    """
    Write a session's record, replacing an earlier one.

    Raises:
        OSError: the disk is full, and there was no record before.
    """
    content = msgspec.json.format(_encode(record), indent=2).ljust(_META_BYTES - 1) + b"\n"
    file = os.open(folder / META, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, content, 0)
        os.truncate(file, len(content))  # the one before may have been longer
    finally:
        os.close(file)


def decode_record(meta: bytes) -> SessionRecord:
    """
    The record in a `meta.json`.

    Raises:
        msgspec.DecodeError: it is not a record.
    """
    return _record_decoder.decode(meta)


def read_meta(folder: Path) -> SessionRecord | None:
    """The session's record; None where it can't be read."""
    try:
        return decode_record((folder / META).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def repair(folder: Path) -> int:
    """
    Cut a recording's files at whole lines and whole samples, and write the lengths of its audio into the WAV headers.

    Returns:
        The size of all its files in bytes.
    """
    events = folder / EVENTS
    if events.exists():
        os.truncate(events, _whole_lines_bytes(events))
    for path in folder.rglob("*.wav"):
        _repair_wav(path)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _whole_lines_bytes(path: Path) -> int:
    """Where the last whole line of a file ends; it is read from its end, as it may be long."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            if (at := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + at + 1
            end = begin
    return 0


def _repair_wav(path: Path) -> None:
    size = path.stat().st_size
    pcm_bytes = (size - WAV_HEADER_BYTES) // SAMPLE_BYTES * SAMPLE_BYTES
    if pcm_bytes <= 0:
        # A header alone is no audio.
        path.unlink()
        return
    os.truncate(path, WAV_HEADER_BYTES + pcm_bytes)
    with path.open("r+b", buffering=0) as file:
        header = wav_header(wav_rate_hz(file.read(WAV_HEADER_BYTES)), pcm_bytes)
        file.seek(0)
        file.write(header)


def wav_rate_hz(file: bytes) -> int:
    """The sample rate in the header of a recording's WAV file: `nSamplesPerSec` of its format chunk."""
    return int.from_bytes(file[24:28], "little")


def decode_lines(content: bytes) -> Iterator[EventLine]:
    """The events of a recording, in order; an incomplete last line is left out."""
    for line in content.split(b"\n")[:-1]:
        yield _line_decoder.decode(line)


def last_event_s(folder: Path) -> float:
    """
    When the last event of a dead process's recording was, in seconds after its start.

    The file is cut before the first line that can't be read: after a loss of power there may be zeros in place of what
    was not written.
    """
    path = folder / EVENTS
    if not path.exists():
        return 0.0
    good_bytes, at_s = 0, 0.0
    with path.open("r+b") as file, contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        for line in file:
            at_s = _line_decoder.decode(line).at_s
            good_bytes += len(line)
    os.truncate(path, good_bytes)
    return at_s
