"""
The files of one recording while it is made, and what is done with those of a server that died.

Files only grow, and each is whole at any moment but for its tail: a line that has no end, half a sample. `mend` cuts that off, so that
what was written can be read and played whenever the process was killed. `meta.json` has its final size from the beginning and is
written over in place: it can still say what happened when the disk is full.
"""

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.audio import SAMPLE_BYTES, WAV_HEADER_BYTES, streaming_wav_header, wav_file, wav_header
from antiphon.records import SessionRecord
from antiphon.runtime.recording import events as recorded
from antiphon.runtime.recording.events import MEDIA_KEY, TO_PCM, AudioEncoding, MediaSinks
from antiphon.runtime.recording.minicpmo import AudioAttachment, JpegImage

META, EVENTS = "meta.json", "events.jsonl"
_META_BYTES = 4096


class EventLine(Struct, frozen=True):
    """
    One event of a recording.

    Attributes:
        seq: 1 for the first.
        at_s: seconds after the recording began.
        direction: `in` from the client, `out` to it.
        event: as on the wire, save for its media.
    """

    seq: int
    at_s: float
    direction: str
    event: Any


_line_decoder: msgspec.json.Decoder[EventLine] = msgspec.json.Decoder(EventLine)
_record_decoder: msgspec.json.Decoder[SessionRecord] = msgspec.json.Decoder(SessionRecord)
_encode = msgspec.json.Encoder().encode


class RecordingFiles:
    """
    What is written of one session.

    Args:
        folder: of its own; made with the first write.
        forms: of the sound of both directions.

    Attributes:
        bytes: what was written.
    """

    def __init__(self, folder: Path, encodings: dict[str, AudioEncoding]) -> None:
        self.folder = folder
        self.bytes = 0
        self._encodings = dict(encodings)
        self._tracks: dict[str, _AudioTrack] = {}
        self._pending: dict[str, list[bytes]] = {}
        self._track_counts: dict[str, int] = {}
        self._seq = self._image_count = self._attachment_count = 0
        self._media_sinks = {
            direction: MediaSinks(partial(self._add_audio, direction), self._add_image, self._add_attachment)
            for direction in (recorded.IN, recorded.OUT)
        }

    def begin(self, record: SessionRecord) -> None:
        """Make the folder, and say in it whose recording this is."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_meta(self.folder, record)

    def add(self, at_s: float, direction: str, event: dict[str, Any]) -> None:
        """Take an event; it is written with the next `write`."""
        self._encodings.update(recorded.audio_encodings(event))
        told = recorded.extract_media(event, self._media_sinks[direction])
        self._seq += 1
        line = EventLine(self._seq, round(at_s, 4), direction, told)
        self._pending.setdefault(EVENTS, []).append(_encode(line) + b"\n")

    def write(self) -> None:
        """
        Append what was taken, sound before the lines that speak of it.

        Raises:
            OSError: as much as there was room for was written.
        """
        waiting, self._pending = self._pending, {}
        lines = waiting.pop(EVENTS, ())
        for name, pieces in (*waiting.items(), (EVENTS, lines)):
            content = b"".join(pieces)
            _append(self.folder / name, content)
            self.bytes += len(content)

    def _add_audio(self, direction: str, chunk: bytes) -> dict[str, Any]:
        form = self._encodings[direction]
        lane = self._tracks.get(direction)
        if lane is None or lane.rate_hz != form.rate_hz:
            lane = self._tracks[direction] = self._new_track(direction, form.rate_hz)
        pcm = TO_PCM[form.name](chunk)
        offset, lane.bytes = lane.bytes, lane.bytes + len(pcm)
        self._pending.setdefault(lane.name, []).append(pcm)
        return {MEDIA_KEY: lane.name, "offset": offset, "bytes": len(pcm), "form": form.name}

    def _new_track(self, direction: str, rate_hz: int) -> "_AudioTrack":
        """One more file of sound: a WAV file has one rate from end to end."""
        count = self._track_counts[direction] = self._track_counts.get(direction, 0) + 1
        name = f"{direction}.wav" if count == 1 else f"{direction}-{count}.wav"
        self._pending.setdefault(name, []).append(streaming_wav_header(rate_hz))
        return _AudioTrack(name, rate_hz)

    def _add_image(self, image: JpegImage) -> dict[str, Any]:
        self._image_count += 1
        name = f"frames/{self._image_count:06}.jpg"
        self._pending.setdefault(name, []).append(image.jpeg)
        return {MEDIA_KEY: name, "bytes": len(image.jpeg), "form": "jpeg"}

    def _add_attachment(self, attachment: AudioAttachment) -> dict[str, Any]:
        self._attachment_count += 1
        name = f"asides/{self._attachment_count:06}.wav"
        self._pending[name] = [wav_file(attachment.pcm, attachment.rate_hz)]
        return {MEDIA_KEY: name, "offset": 0, "bytes": len(attachment.pcm), "form": "pcm"}


class _AudioTrack(Struct):
    """A file of sound, and how much is in it."""

    name: str
    rate_hz: int
    bytes: int = 0


def _append(path: Path, content: bytes) -> None:
    if not content:
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # Opened for this one write: a session that is recorded keeps no file open, of which a process may have but so many.
    with path.open("ab", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]


def write_meta(folder: Path, record: SessionRecord) -> None:
    """
    Say what is known of the session, in place of what was said before.

    Raises:
        OSError: the disk is full, and there was none before.
    """
    file = os.open(folder / META, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, msgspec.json.format(_encode(record), indent=2).ljust(_META_BYTES - 1) + b"\n", 0)
    finally:
        os.close(file)


def decode_record(meta: bytes) -> SessionRecord:
    """
    What `meta.json` says.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _record_decoder.decode(meta)


def read_meta(folder: Path) -> SessionRecord | None:
    """What is known of the session; None where that can't be read."""
    try:
        return decode_record((folder / META).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def repair(folder: Path) -> int:
    """
    Make a recording whole as far as it goes: whole lines, whole samples, and the length of its sound where players look for it.

    Returns:
        The bytes of all its files.
    """
    events = folder / EVENTS
    if events.exists():
        os.truncate(events, events.read_bytes().rfind(b"\n") + 1)
    for path in folder.rglob("*.wav"):
        _repair_wav(path)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _repair_wav(path: Path) -> None:
    size = path.stat().st_size
    sound_bytes = (size - WAV_HEADER_BYTES) // SAMPLE_BYTES * SAMPLE_BYTES
    if sound_bytes <= 0:
        path.unlink()
        return
    os.truncate(path, WAV_HEADER_BYTES + sound_bytes)
    with path.open("r+b", buffering=0) as file:
        rate_hz = int.from_bytes(file.read(WAV_HEADER_BYTES)[24:28], "little")
        file.seek(0)
        file.write(wav_header(rate_hz, sound_bytes))


def decode_lines(content: bytes) -> Iterator[EventLine]:
    """The events of a recording, in order; a line that has no end is none."""
    for line in content.split(b"\n")[:-1]:
        yield _line_decoder.decode(line)


def last_event_s(folder: Path) -> float:
    """
    When the last event of a dead process's recording was, in seconds after its beginning.

    Events end where a line can't be read: a machine that lost its power leaves zeros where it had not come to write what was there.
    """
    path = folder / EVENTS
    if not path.exists():
        return 0.0
    whole_bytes, at_s = 0, 0.0
    with path.open("r+b") as file, contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        for line in file:
            at_s = _line_decoder.decode(line).at_s
            whole_bytes += len(line)
    os.truncate(path, whole_bytes)
    return at_s
