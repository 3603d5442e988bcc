"""What an engine of turns is told of a conversation in full duplex: all that was said, within bounds."""

from collections.abc import Iterator

from msgspec import structs

from antiphon.audio import SAMPLE_BYTES, bytes_of, ms_of
from antiphon.engine_api import history as turns

MOST_TURNS = 200
"""How many are remembered; the engine forgets sooner where it has less room."""

MOST_SOUND_MS = 60_000
"""Of how much speech the sound is kept, beside what the engine remembers of its own turns."""

MOST_PICTURES = 4
"""How many are remembered, the newest."""

LOOKBACK_MS = 4_000
"""How much sound is kept while nobody speaks: a turn is told a little after it began."""


def remembered(history: tuple[turns.Turn, ...], said: turns.Message) -> tuple[turns.Turn, ...]:
    """The history with what was said last, and without what there is no room for any more; oldest first."""
    newest_first = [said, *reversed(history)][:MOST_TURNS]
    return tuple(_bounded(newest_first))[::-1]


def _bounded(newest_first: list[turns.Turn]) -> Iterator[turns.Turn]:
    sound_ms, pictures = 0.0, 0
    for turn in newest_first:
        parts: list[turns.Part] = []
        for part in turn.parts if isinstance(turn, turns.Message) else ():
            if isinstance(part, turns.ImagePart):
                pictures += 1
                if pictures > MOST_PICTURES:
                    continue
            elif isinstance(part, turns.SpeechPart) and part.pcm:
                sound_ms += ms_of(len(part.pcm), part.rate_hz)
                part = structs.replace(part, pcm=b"") if sound_ms > MOST_SOUND_MS else part
            parts.append(part)
        yield structs.replace(turn, parts=tuple(parts)) if isinstance(turn, turns.Message) else turn


class Recent:
    """The sound that came last: of the turn that is open, or a little of what came before one."""

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._kept = bytearray()
        self._came_bytes = 0
        self._is_open = False

    def hear(self, pcm: bytes) -> None:
        """More of it."""
        self._kept += pcm
        self._came_bytes += len(pcm)
        most = bytes_of(MOST_SOUND_MS if self._is_open else LOOKBACK_MS, self.rate_hz)
        if len(self._kept) > 2 * most:
            del self._kept[:-most]

    def open(self, at_ms: int) -> None:
        """A turn starts there."""
        del self._kept[: self._place(at_ms)]
        self._is_open = True

    def close(self, at_ms: int) -> bytes:
        """The turn that is open ends there; gives its sound, as far as it was kept."""
        end = self._place(at_ms)
        sound = bytes(self._kept[:end])
        del self._kept[:end]
        self._is_open = False
        return sound

    def _place(self, at_ms: int) -> int:
        first = self._came_bytes - len(self._kept)
        return max(0, at_ms * self.rate_hz // 1000 * SAMPLE_BYTES - first)
