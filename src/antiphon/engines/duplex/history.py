"""The history of a full-duplex conversation as a turn-taking engine gets it: everything said, within bounds."""

from collections.abc import Iterator

from msgspec import structs

from antiphon.audio import SAMPLE_BYTES, duration_ms, size_bytes
from antiphon.engine_api import history as engine_history
from antiphon.engine_api.options import LOOKBACK_MS

MAX_ITEMS = 200
"""How many items are kept; the engine drops more if its context is smaller."""

MAX_AUDIO_MS = 60_000
"""How much speech keeps its audio; an engine may keep transcripts of older turns."""

MAX_IMAGES = 4
"""How many images are kept, the newest."""


def append_message(
    history: tuple[engine_history.HistoryItem, ...], message: engine_history.Message
) -> tuple[engine_history.HistoryItem, ...]:
    """The history with a message more, without what is beyond the bounds; oldest first."""
    newest_first = [message, *reversed(history)][:MAX_ITEMS]
    return tuple(_limit_items(newest_first))[::-1]


def _limit_items(newest_first: list[engine_history.HistoryItem]) -> Iterator[engine_history.HistoryItem]:
    audio_ms, image_count = 0.0, 0
    for item in newest_first:
        parts: list[engine_history.HistoryPart] = []
        for part in item.parts if isinstance(item, engine_history.Message) else ():
            if isinstance(part, engine_history.ImagePart):
                image_count += 1
                if image_count > MAX_IMAGES:
                    continue
            elif isinstance(part, engine_history.SpeechPart) and part.pcm:
                audio_ms += duration_ms(len(part.pcm), part.rate_hz)
                part = structs.replace(part, pcm=b"") if audio_ms > MAX_AUDIO_MS else part
            parts.append(part)
        yield structs.replace(item, parts=tuple(parts)) if isinstance(item, engine_history.Message) else item


class RecentAudio:
    """The most recent audio: of the open turn, or the last few seconds before one."""

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._buffer = bytearray()
        self._total_bytes = 0
        self._is_open = False

    def append(self, pcm: bytes) -> None:
        self._buffer += pcm
        self._total_bytes += len(pcm)
        max_bytes = size_bytes(MAX_AUDIO_MS if self._is_open else LOOKBACK_MS, self.rate_hz)
        if len(self._buffer) > 2 * max_bytes:
            del self._buffer[:-max_bytes]

    def start_turn(self, at_ms: int) -> None:
        """Begin a turn: drop the audio before it."""
        del self._buffer[: self._offset_bytes(at_ms)]
        self._is_open = True

    def end_turn(self, at_ms: int) -> bytes:
        """End the open turn; returns its audio, as far as it is kept."""
        end = self._offset_bytes(at_ms)
        pcm = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._is_open = False
        return pcm

    def _offset_bytes(self, at_ms: int) -> int:
        first = self._total_bytes - len(self._buffer)
        return max(0, at_ms * self.rate_hz // 1000 * SAMPLE_BYTES - first)
