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

from antiphon.audio import SAMPLE_BYTES, WAV_HEAD_BYTES, endless_wav_head, wav, wav_head
from antiphon.records import SessionRecord
from antiphon.runtime.recording import events as recorded
from antiphon.runtime.recording.events import MEDIA, TO_PCM, Form, Takers
from antiphon.runtime.recording.minicpmo import Aside, Picture

META, EVENTS = "meta.json", "events.jsonl"
_META_BYTES = 4096


class Line(Struct, frozen=True):
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


_lines: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_records: msgspec.json.Decoder[SessionRecord] = msgspec.json.Decoder(SessionRecord)
_encode = msgspec.json.Encoder().encode


class Files:
    """
    What is written of one session.

    Args:
        folder: of its own; made with the first write.
        forms: of the sound of both directions.

    Attributes:
        bytes: what was written.
    """

    def __init__(self, folder: Path, forms: dict[str, Form]) -> None:
        self.folder = folder
        self.bytes = 0
        self._forms = dict(forms)
        self._lanes: dict[str, _Lane] = {}
        self._waiting: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._seq = self._pictures = self._asides = 0
        self._takers = {
            direction: Takers(partial(self._sound, direction), self._picture, self._aside) for direction in (recorded.IN, recorded.OUT)
        }

    def begin(self, record: SessionRecord) -> None:
        """Make the folder, and say in it whose recording this is."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_meta(self.folder, record)

    def add(self, at_s: float, direction: str, event: dict[str, Any]) -> None:
        """Take an event; it is written with the next `write`."""
        self._forms.update(recorded.forms_in(event))
        told = recorded.parted(event, self._takers[direction])
        self._seq += 1
        line = Line(self._seq, round(at_s, 4), direction, told)
        self._waiting.setdefault(EVENTS, []).append(_encode(line) + b"\n")

    def write(self) -> None:
        """
        Append what was taken, sound before the lines that speak of it.

        Raises:
            OSError: as much as there was room for was written.
        """
        waiting, self._waiting = self._waiting, {}
        lines = waiting.pop(EVENTS, ())
        for name, pieces in (*waiting.items(), (EVENTS, lines)):
            content = b"".join(pieces)
            _append(self.folder / name, content)
            self.bytes += len(content)

    def _sound(self, direction: str, piece: bytes) -> dict[str, Any]:
        form = self._forms[direction]
        lane = self._lanes.get(direction)
        if lane is None or lane.rate_hz != form.rate_hz:
            lane = self._lanes[direction] = self._new_lane(direction, form.rate_hz)
        pcm = TO_PCM[form.name](piece)
        offset, lane.bytes = lane.bytes, lane.bytes + len(pcm)
        self._waiting.setdefault(lane.name, []).append(pcm)
        return {MEDIA: lane.name, "offset": offset, "bytes": len(pcm), "form": form.name}

    def _new_lane(self, direction: str, rate_hz: int) -> "_Lane":
        """One more file of sound: a WAV file has one rate from end to end."""
        count = self._sizes[direction] = self._sizes.get(direction, 0) + 1
        name = f"{direction}.wav" if count == 1 else f"{direction}-{count}.wav"
        self._waiting.setdefault(name, []).append(endless_wav_head(rate_hz))
        return _Lane(name, rate_hz)

    def _picture(self, picture: Picture) -> dict[str, Any]:
        self._pictures += 1
        name = f"frames/{self._pictures:06}.jpg"
        self._waiting.setdefault(name, []).append(picture.jpeg)
        return {MEDIA: name, "bytes": len(picture.jpeg), "form": "jpeg"}

    def _aside(self, aside: Aside) -> dict[str, Any]:
        self._asides += 1
        name = f"asides/{self._asides:06}.wav"
        self._waiting[name] = [wav(aside.pcm, aside.rate_hz)]
        return {MEDIA: name, "offset": 0, "bytes": len(aside.pcm), "form": "pcm"}


class _Lane(Struct):
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


def record_of(meta: bytes) -> SessionRecord:
    """
    What `meta.json` says.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _records.decode(meta)


def read_meta(folder: Path) -> SessionRecord | None:
    """What is known of the session; None where that can't be read."""
    try:
        return record_of((folder / META).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def mend(folder: Path) -> int:
    """
    Make a recording whole as far as it goes: whole lines, whole samples, and the length of its sound where players look for it.

    Returns:
        The bytes of all its files.
    """
    events = folder / EVENTS
    if events.exists():
        os.truncate(events, events.read_bytes().rfind(b"\n") + 1)
    for path in folder.rglob("*.wav"):
        _mend_wav(path)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _mend_wav(path: Path) -> None:
    size = path.stat().st_size
    sound_bytes = (size - WAV_HEAD_BYTES) // SAMPLE_BYTES * SAMPLE_BYTES
    if sound_bytes <= 0:
        path.unlink()
        return
    os.truncate(path, WAV_HEAD_BYTES + sound_bytes)
    with path.open("r+b", buffering=0) as file:
        rate_hz = int.from_bytes(file.read(WAV_HEAD_BYTES)[24:28], "little")
        file.seek(0)
        file.write(wav_head(rate_hz, sound_bytes))


def lines_of(content: bytes) -> Iterator[Line]:
    """The events of a recording, in order; a line that has no end is none."""
    for line in content.split(b"\n")[:-1]:
        yield _lines.decode(line)


def lasted_s(folder: Path) -> float:
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
            at_s = _lines.decode(line).at_s
            whole_bytes += len(line)
    os.truncate(path, whole_bytes)
    return at_s
