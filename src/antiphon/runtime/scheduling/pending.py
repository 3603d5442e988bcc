"""What a conversation is told before there is somebody to tell it to."""

from collections.abc import Iterator

from antiphon.engine_api import commands
from antiphon.engine_api.engine import EngineOverrun

MEDIA_LIMIT_BYTES = 512 * 1024
"""Sound and pictures that are kept: ten seconds at 24 kHz. What is older was said to nobody, and is dropped."""

MAX_REQUESTS = 64
MAX_COMMANDS = 256
"""Words that are kept, besides sound and pictures."""


class PendingCommands:
    """Words, in their order, within bounds."""

    def __init__(self) -> None:
        self._commands: list[commands.EngineCommand] = []
        self._media_bytes = 0

    def add(self, command: commands.EngineCommand) -> None:
        """
        One more.

        Raises:
            EngineOverrun: there is no room for it.
        """
        match command:
            case commands.AppendAudio() | commands.AppendImage():
                if size := _media_size(command):  # what says nothing would be kept without a bound
                    self._commands.append(command)
                    self._media_bytes += size
                    self._drop_oldest()
            case commands.Prepare():
                pass  # it is worth something only while it can be acted on
            case _:
                if len(self.response_ids()) >= MAX_REQUESTS or sum(_media_size(kept) == 0 for kept in self._commands) >= MAX_COMMANDS:
                    raise EngineOverrun("too much is waiting for a place already")
                self._commands.append(command)

    def cancel(self, id: str) -> bool:
        """Forget an answer that was asked for; whether it was."""
        count = len(self._commands)
        self._commands = [word for word in self._commands if not (isinstance(word, commands.Respond) and word.id == id)]
        return len(self._commands) < count

    def response_ids(self) -> list[str]:
        """The ids of the answers that were asked for."""
        return [word.id for word in self._commands if isinstance(word, commands.Respond)]

    def take(self) -> Iterator[commands.EngineCommand]:
        """All of them; nothing is kept any more."""
        words, self._commands, self._media_bytes = self._commands, [], 0
        return iter(words)

    def _drop_oldest(self) -> None:
        at = 0
        while self._media_bytes > MEDIA_LIMIT_BYTES:
            size = _media_size(self._commands[at])
            if size:
                self._media_bytes -= size
                del self._commands[at]
            else:
                at += 1


def _media_size(command: commands.EngineCommand) -> int:
    """The bytes of sound or of a picture; 0 for a word that has none."""
    match command:
        case commands.AppendAudio(pcm):
            return len(pcm)
        case commands.AppendImage(jpeg):
            return len(jpeg)
        case _:
            return 0
