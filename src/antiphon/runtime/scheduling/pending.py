"""Commands for a conversation that has no worker yet."""

from collections.abc import Iterator

from antiphon.engine_api import commands
from antiphon.engine_api.engine import EngineOverrun

MEDIA_LIMIT_BYTES = 512 * 1024
"""
Audio and images that are stored: ten seconds at 24 kHz. Older ones are dropped: no worker was listening when they were
sent.
"""

MAX_REQUESTS = 64
MAX_COMMANDS = 256
"""Commands that are stored besides audio and images."""


class PendingCommands:
    """Stores commands in order, within bounds."""

    def __init__(self) -> None:
        self._commands: list[commands.EngineCommand] = []
        self._media_bytes = 0

    def add(self, command: commands.EngineCommand) -> None:
        """
        Store a command.

        Raises:
            EngineOverrun: there is no room for it.
        """
        match command:
            case commands.AppendAudio() | commands.AppendImage():
                if size := _media_size(command):  # empty ones would not count towards the limit
                    self._commands.append(command)
                    self._media_bytes += size
                    self._drop_oldest()
            case commands.Prepare():
                pass  # only of use to an engine that can act on it at once
            case _:
                if len(self.response_ids()) >= MAX_REQUESTS or sum(_media_size(each) == 0 for each in self._commands) >= MAX_COMMANDS:
                    raise EngineOverrun("too much is already waiting for a worker")
                self._commands.append(command)

    def cancel(self, id: str) -> bool:
        """Drop the request with that id; returns whether there was one."""
        count = len(self._commands)
        self._commands = [each for each in self._commands if not (isinstance(each, commands.Respond | commands.Relay) and each.id == id)]
        return len(self._commands) < count

    def response_ids(self) -> list[str]:
        """The ids of the stored requests."""
        return [each.id for each in self._commands if isinstance(each, commands.Respond | commands.Relay)]

    def take(self) -> Iterator[commands.EngineCommand]:
        """Return all commands and forget them."""
        batch, self._commands, self._media_bytes = self._commands, [], 0
        return iter(batch)

    def _drop_oldest(self) -> None:
        index = 0
        while self._media_bytes > MEDIA_LIMIT_BYTES:
            size = _media_size(self._commands[index])
            if size:
                self._media_bytes -= size
                del self._commands[index]
            else:
                index += 1


def _media_size(command: commands.EngineCommand) -> int:
    """Bytes of audio or of an image; 0 for any other command."""
    match command:
        case commands.AppendAudio(pcm):
            return len(pcm)
        case commands.AppendImage(jpeg):
            return len(jpeg)
        case _:
            return 0
