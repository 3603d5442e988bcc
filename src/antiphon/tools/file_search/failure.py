"""Why a file can't be searched."""

from typing import Literal


class UnreadableFileError(Exception):
    """
    A file has no text that can be searched; the message is for the client, who sent the file.

    Attributes:
        code: `unsupported_file` for a type that is not read, `invalid_file` for one that is damaged or too large,
            `server_error` where this server could not read it now.
    """

    def __init__(self, code: Literal["unsupported_file", "invalid_file", "server_error"], message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
