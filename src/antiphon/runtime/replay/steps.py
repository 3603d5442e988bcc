"""
A recording said again: what to send, when, and what has to have come before.

A step waits for the time at which it was said, where the pace is to be that of the recording, and for as many of the server's milestones as
had come before it then: so a question is not asked before the last answer is over, however fast the rest goes.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from antiphon.audio import encode_alaw, encode_ulaw
from antiphon.records import SessionRecord
from antiphon.runtime.recording.events import IN, OUT, MediaReference, restore_media
from antiphon.runtime.recording.files import EVENTS, META, EventLine, decode_lines, decode_record
from antiphon.runtime.recording.mixing import read_wav
from antiphon.wire.minicpmo.media import to_floats

MILESTONES = ("session.queue_done", "session.created", "session.updated", "response.done")

END_OF_TURN = "end_of_turn"
"""What the end of an answer counts as in full duplex. Only a goodbye waits for it: whoever spoke on before it came does so again."""

_PCM_ENCODERS: dict[str, Callable[[bytes], bytes]] = {"pcm": bytes, "pcmu": encode_ulaw, "pcma": encode_alaw}


class ReplayStep(Struct, frozen=True):
    """
    One event to be sent.

    Attributes:
        at_s: when it was said, after the session's beginning.
        after: how many of each milestone had come by then.
    """

    at_s: float
    event: dict[str, Any]
    milestones_before: Mapping[str, int]


class DownloadedRecording:
    """
    A recording, as it was downloaded.

    Args:
        files: their contents by name.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self.record: SessionRecord = decode_record(files[META])
        self.lines: list[EventLine] = list(decode_lines(files.get(EVENTS, b"")))

    @property
    def is_full_duplex(self) -> bool:
        """Whether both sides spoke whenever they wanted to."""
        return self.record.protocol == "minicpmo" and self.record.mode != "chat"

    def session_path(self, model: str | None, *, is_recorded: bool) -> str:
        """The address at which such a session is opened."""
        record = self.record
        asked = {"model": model or record.model}
        if record.protocol == "minicpmo":
            asked["mode"] = record.mode
        elif record.mode == "transcription":
            asked = {"intent": "transcription"}
        return "/v1/realtime?" + urlencode(asked | ({"record": "1"} if is_recorded else {}))

    def steps(self) -> Iterator[ReplayStep]:
        """What the client said, with its sound and pictures in it."""
        come: Counter[str] = Counter()
        begins_at_s = self.lines[0].at_s if self.lines else 0.0
        for line in self.lines:
            if line.direction == IN:
                is_goodbye = line.event.get("type") == "session.close"
                after = {kind: count for kind, count in come.items() if kind != END_OF_TURN or is_goodbye}
                yield ReplayStep(line.at_s - begins_at_s, restore_media(line.event, self._load_media), after)
            elif (kind := milestone_of(line.event)) in MILESTONES or kind == END_OF_TURN:
                come[kind] += 1

    def _load_media(self, media: MediaReference) -> str | None:
        file = self.files.get(media.file)
        if file is None:
            return None
        if media.form == "jpeg":
            return base64.b64encode(file).decode()
        pcm = read_wav(file).pcm[media.offset : media.offset + media.bytes]
        written = to_floats if self.record.protocol == "minicpmo" else _PCM_ENCODERS[media.form]
        return base64.b64encode(written(pcm)).decode()


def milestone_of(event: Mapping[str, Any]) -> str:
    """What an event of the server counts as."""
    return END_OF_TURN if event.get("end_of_turn") else str(event.get("type"))


_ID_READERS: dict[str, Callable[[Any], str]] = {
    "conversation.item.added": lambda event: event["item"]["id"],
    "response.created": lambda event: event["response"]["id"],
}
_ID_FIELDS = ("item_id", "previous_item_id", "response_id")


class IdMapping:
    """
    The ids that the server makes anew: a client names its items and responses by the ids of that time.

    Args:
        lines: of the recording.
    """

    def __init__(self, lines: Iterable[EventLine]) -> None:
        self._recorded_ids: dict[str, list[str]] = {kind: [] for kind in _ID_READERS}
        self._replayed_ids: dict[str, list[str]] = {kind: [] for kind in _ID_READERS}
        for line in lines:
            if line.direction == OUT:
                _collect_id(self._recorded_ids, line.event)

    def on_server_event(self, event: Any) -> None:
        """The server says this now."""
        _collect_id(self._replayed_ids, event)

    def map_event(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event of the recording with the ids of now."""
        known = {then: now for kind in _ID_READERS for then, now in zip(self._recorded_ids[kind], self._replayed_ids[kind], strict=False)}
        return event | {name: known.get(event[name], event[name]) for name in _ID_FIELDS if isinstance(event.get(name), str)}


def _collect_id(ids: dict[str, list[str]], event: Any) -> None:
    if (id_of := _ID_READERS.get(event.get("type"))) is not None:
        ids[event["type"]].append(id_of(event))
