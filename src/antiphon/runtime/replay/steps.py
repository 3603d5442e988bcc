"""
The steps of a replay: what to send, when, and which server events must have come before.

A step waits for its time in the recording, if the replay keeps the recording's pace, and for as many of the server's
milestones as had come before it then: so a question is not sent before the last response is over, however fast the
replay is.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast
from urllib.parse import urlencode

from msgspec import Struct

from antiphon.records import SessionRecord
from antiphon.runtime.recording.events import FROM_PCM, IN, OUT, EventFields, MediaReference, restore_media
from antiphon.runtime.recording.files import EVENTS, META, EventLine, decode_lines, decode_record
from antiphon.runtime.recording.mixing import read_wav

MILESTONES = ("session.queue_done", "session.created", "session.updated", "response.done")

END_OF_TURN = "end_of_turn"
"""
The milestone of a response's end in full duplex. Only `session.close` waits for it: a person may speak before it comes.
"""


class ReplayStep(Struct, frozen=True):
    """
    One event to send.

    Attributes:
        at_s: its time in the recording, in seconds after the first event.
        milestones_before: how many of each milestone had come by then.
    """

    at_s: float
    event: dict[str, object]
    milestones_before: Mapping[str, int]


class DownloadedRecording:
    """
    A downloaded recording.

    Args:
        files: contents by name.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self.record: SessionRecord = decode_record(files[META])
        self.lines: list[EventLine] = list(decode_lines(files.get(EVENTS, b"")))

    @property
    def is_full_duplex(self) -> bool:
        """Whether both sides could speak at any time."""
        return self.record.protocol == "minicpmo" and self.record.mode != "chat"

    def session_path(self, model: str | None, *, is_recorded: bool) -> str:
        """The path and query that open such a session, with `model` or else the recorded one."""
        record = self.record
        query = {"model": model or record.model}
        if record.protocol == "minicpmo":
            query["mode"] = record.mode
        elif record.mode == "transcription":
            query = {"intent": "transcription"}
        return "/v1/realtime?" + urlencode(query | ({"record": "1"} if is_recorded else {}))

    def steps(self, model: str | None = None) -> Iterator[ReplayStep]:
        """
        The client's events, with their audio and images in them.

        Args:
            model: takes the place of the recorded model where an event names it; None leaves it.
        """
        milestones: Counter[str] = Counter()
        start_s = self.lines[0].at_s if self.lines else 0.0
        for line in self.lines:
            if line.direction == IN:
                is_close = line.event.get("type") == "session.close"
                before = {kind: count for kind, count in milestones.items() if kind != END_OF_TURN or is_close}
                event = restore_media(line.event, self._load_media)
                yield ReplayStep(line.at_s - start_s, event if model is None else _with_model(event, model), before)
            elif (kind := milestone_of(line.event)) in MILESTONES or kind == END_OF_TURN:
                milestones[kind] += 1

    def _load_media(self, media: MediaReference) -> str | None:
        file = self.files.get(media.file)
        if file is None:
            return None
        if media.is_image:
            return base64.b64encode(file).decode()
        pcm = read_wav(file).pcm[media.offset : media.offset + media.bytes]
        # Older recordings of MiniCPM-o's clients say `pcm`, which their protocol never has.
        encode = FROM_PCM["float32" if self.record.protocol == "minicpmo" else media.form]
        return base64.b64encode(encode(pcm)).decode()


def _with_model(event: dict[str, object], model: str) -> dict[str, object]:
    # A session's model can't be changed: with the recorded one, the update would be refused, and its settings lost.
    session = event.get("session")
    if event.get("type") != "session.update" or not isinstance(session, dict) or "model" not in session:
        return event
    return event | {"session": session | {"model": model}}


def milestone_of(event: Mapping[str, object]) -> str:
    """The milestone that a server event is, or else its type."""
    return END_OF_TURN if event.get("end_of_turn") else str(event.get("type"))


_ID_READERS: dict[str, Callable[[EventFields], str]] = {
    "conversation.item.added": lambda event: event["item"]["id"],
    "response.created": lambda event: event["response"]["id"],
}
_ID_FIELDS = ("item_id", "previous_item_id", "response_id")


class IdMapping:
    """
    Maps recorded ids of items and responses to the server's new ones.

    Args:
        lines: of the recording.
    """

    def __init__(self, lines: Iterable[EventLine]) -> None:
        self._recorded_ids: dict[str, list[str]] = {kind: [] for kind in _ID_READERS}
        self._replayed_ids: dict[str, list[str]] = {kind: [] for kind in _ID_READERS}
        for line in lines:
            if line.direction == OUT:
                _collect_id(self._recorded_ids, line.event)

    def on_server_event(self, event: Mapping[str, object]) -> None:
        """Take the ids in a server event of the replay."""
        _collect_id(self._replayed_ids, event)

    def map_event(self, event: dict[str, object]) -> dict[str, object]:
        """A recorded client event with the new ids."""
        new_ids = {old: new for kind in _ID_READERS for old, new in zip(self._recorded_ids[kind], self._replayed_ids[kind], strict=False)}
        return event | {name: new_ids.get(id, id) for name in _ID_FIELDS if isinstance(id := event.get(name), str)}


def _collect_id(ids: dict[str, list[str]], event: Mapping[str, object]) -> None:
    fields = cast(EventFields, event)
    kind = fields.get("type", "")
    if kind in _ID_READERS:
        ids[kind].append(_ID_READERS[kind](fields))
