"""Uploaded files for tools that need one whole."""

from collections.abc import Awaitable, Callable

from antiphon.errors import file_too_large, wrong_id_prefix
from antiphon.runtime.files.library import ID_PREFIX, FileLibrary


def file_reader(files: FileLibrary, max_bytes: int) -> Callable[[str, str, str], Awaitable[bytes]]:
    """
    Reads uploaded files of at most `max_bytes`: takes the tenant, the file's id and the field that names it.

    What it returns raises `errors.ClientError` if there is no such file, or it is too large.
    """

    async def read(tenant: str, file_id: str, param: str) -> bytes:
        if not file_id.startswith(ID_PREFIX):
            raise wrong_id_prefix(param, file_id, ID_PREFIX)
        record = await files.find(tenant, file_id, param)
        if record.bytes > max_bytes:
            raise file_too_large(param, max_bytes)
        return b"".join([chunk async for chunk in files.chunks(record)])

    return read
