"""Commands for a conversation that has no worker yet."""

from collections.abc import Iterator

from antiphon.engine_api import commands
from antiphon.engine_api.engine import EngineOverrun

MEDIA_LIMIT_BYTES = 512 * 1024
"""
Audio and images that are stored: ten seconds at 24 kHz. Older ones are dropped: no worker was listening when they were
sent.
"""

MAX_MEDIA = 2048
"""Pieces of audio and images: of tiny ones, each takes more memory than it has bytes."""

MAX_REQUESTS = 64
MAX_COMMANDS = 256
"""Commands that are stored besides audio and images."""


class PendingCommands:
    """Stores commands in order, within bounds."""

    def __init__(self) -> None:
        self._commands: list[commands.EngineCommand] = []
        self._media_bytes = self._media_count = self._request_count = 0

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
                    self._media_count += 1
                    self._drop_oldest()
            case commands.Prepare():
                pass  # only of use to an engine that can act on it at once
            case _:
                if self._request_count >= MAX_REQUESTS or len(self._commands) - self._media_count >= MAX_COMMANDS:
                    raise EngineOverrun("too much is already waiting for a worker")
                self._commands.append(command)
                self._request_count += isinstance(command, commands.Respond | commands.Relay)

    def cancel(self, id: str) -> bool:
        """Drop the request with that id; returns whether there was one."""
        before = len(self._commands)
        self._commands = [each for each in self._commands if not (isinstance(each, commands.Respond | commands.Relay) and each.id == id)]
        count = before - len(self._commands)
        self._request_count -= count
        return count > 0

    def response_ids(self) -> list[str]:
        """The ids of the stored requests."""
        return [each.id for each in self._commands if isinstance(each, commands.Respond | commands.Relay)]

    def take(self) -> Iterator[commands.EngineCommand]:
        """Return all commands and forget them."""
        batch, self._commands = self._commands, []
        self._media_bytes = self._media_count = self._request_count = 0
        return iter(batch)

    def _drop_oldest(self) -> None:
        index = 0
        while self._media_bytes > MEDIA_LIMIT_BYTES or self._media_count > MAX_MEDIA:
            size = _media_size(self._commands[index])
            if size:
                self._media_bytes -= size
                self._media_count -= 1
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
