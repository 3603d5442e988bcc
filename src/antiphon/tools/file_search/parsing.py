"""Reads files as text, each in a child process with limits of memory, time and size."""


class Parsers:
    """The processes that read files; started when they are needed."""

    async def parse(self, data: bytes, filename: str) -> str:
        """
        The text of a file.

        Args:
            filename: whose ending says what the file is; where it doesn't, the first bytes do.

        Raises:
            UnreadableFileError: the file has no text that can be read.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """End the processes; idempotent."""
        raise NotImplementedError
