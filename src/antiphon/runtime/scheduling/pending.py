"""What a conversation is told before there is somebody to tell it to."""

from collections.abc import Iterator

from antiphon.engine_api import commands
from antiphon.engine_api.engine import EngineOverrun

SOUND_LIMIT_BYTES = 512 * 1024
"""Sound and pictures that are kept: ten seconds at 24 kHz. What is older was said to nobody, and is dropped."""

ASKS_LIMIT = 64
WORDS_LIMIT = 256
"""Words that are kept, besides sound and pictures."""


class Kept:
    """Words, in their order, within bounds."""

    def __init__(self) -> None:
        self._words: list[commands.ToEngine] = []
        self._sound_bytes = 0

    def keep(self, word: commands.ToEngine) -> None:
        """
        One more.

        Raises:
            EngineOverrun: there is no room for it.
        """
        match word:
            case commands.Hear() | commands.See():
                if size := _size(word):  # what says nothing would be kept without a bound
                    self._words.append(word)
                    self._sound_bytes += size
                    self._drop_oldest()
            case commands.Foresee():
                pass  # it is worth something only while it can be acted on
            case _:
                if len(self.asked()) >= ASKS_LIMIT or sum(_size(kept) == 0 for kept in self._words) >= WORDS_LIMIT:
                    raise EngineOverrun("too much is waiting for a place already")
                self._words.append(word)

    def withdraw(self, id: str) -> bool:
        """Forget an answer that was asked for; whether it was."""
        count = len(self._words)
        self._words = [word for word in self._words if not (isinstance(word, commands.Respond) and word.id == id)]
        return len(self._words) < count

    def asked(self) -> list[str]:
        """The ids of the answers that were asked for."""
        return [word.id for word in self._words if isinstance(word, commands.Respond)]

    def take(self) -> Iterator[commands.ToEngine]:
        """All of them; nothing is kept any more."""
        words, self._words, self._sound_bytes = self._words, [], 0
        return iter(words)

    def _drop_oldest(self) -> None:
        at = 0
        while self._sound_bytes > SOUND_LIMIT_BYTES:
            size = _size(self._words[at])
            if size:
                self._sound_bytes -= size
                del self._words[at]
            else:
                at += 1


def _size(word: commands.ToEngine) -> int:
    """The bytes of sound or of a picture; 0 for a word that has none."""
    match word:
        case commands.Hear(pcm):
            return len(pcm)
        case commands.See(jpeg):
            return len(jpeg)
        case _:
            return 0
