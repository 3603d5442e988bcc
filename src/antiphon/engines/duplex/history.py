"""What an engine of turns is told of a conversation in full duplex: all that was said, within bounds."""

from collections.abc import Iterator

from msgspec import structs

from antiphon.audio import SAMPLE_BYTES, duration_ms, size_bytes
from antiphon.engine_api import history as engine_history

MAX_ITEMS = 200
"""How many are remembered; the engine forgets sooner where it has less room."""

MAX_AUDIO_MS = 60_000
"""Of how much speech the sound is kept, beside what the engine remembers of its own turns."""

MAX_IMAGES = 4
"""How many are remembered, the newest."""

LOOKBACK_MS = 4_000
"""How much sound is kept while nobody speaks: a turn is told a little after it began."""


def append_message(
    history: tuple[engine_history.HistoryItem, ...], message: engine_history.Message
) -> tuple[engine_history.HistoryItem, ...]:
    """The history with what was said last, and without what there is no room for any more; oldest first."""
    newest_first = [message, *reversed(history)][:MAX_ITEMS]
    return tuple(_limit_items(newest_first))[::-1]


def _limit_items(newest_first: list[engine_history.HistoryItem]) -> Iterator[engine_history.HistoryItem]:
    sound_ms, pictures = 0.0, 0
    for turn in newest_first:
        parts: list[engine_history.HistoryPart] = []
        for part in turn.parts if isinstance(turn, engine_history.Message) else ():
            if isinstance(part, engine_history.ImagePart):
                pictures += 1
                if pictures > MAX_IMAGES:
                    continue
            elif isinstance(part, engine_history.SpeechPart) and part.pcm:
                sound_ms += duration_ms(len(part.pcm), part.rate_hz)
                part = structs.replace(part, pcm=b"") if sound_ms > MAX_AUDIO_MS else part
            parts.append(part)
        yield structs.replace(turn, parts=tuple(parts)) if isinstance(turn, engine_history.Message) else turn


class RecentAudio:
    """The sound that came last: of the turn that is open, or a little of what came before one."""

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._buffer = bytearray()
        self._total_bytes = 0
        self._is_open = False

    def append(self, pcm: bytes) -> None:
        """More of it."""
        self._buffer += pcm
        self._total_bytes += len(pcm)
        most = size_bytes(MAX_AUDIO_MS if self._is_open else LOOKBACK_MS, self.rate_hz)
        if len(self._buffer) > 2 * most:
            del self._buffer[:-most]

    def start_turn(self, at_ms: int) -> None:
        """A turn starts there."""
        del self._buffer[: self._offset_bytes(at_ms)]
        self._is_open = True

    def end_turn(self, at_ms: int) -> bytes:
        """The turn that is open ends there; gives its sound, as far as it was kept."""
        end = self._offset_bytes(at_ms)
        sound = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._is_open = False
        return sound

    def _offset_bytes(self, at_ms: int) -> int:
        first = self._total_bytes - len(self._buffer)
        return max(0, at_ms * self.rate_hz // 1000 * SAMPLE_BYTES - first)
