"""Uploaded files for tools."""

from collections.abc import Awaitable, Callable

from antiphon.errors import file_too_large, wrong_id_prefix
from antiphon.runtime.files.library import ID_PREFIX, FileLibrary
from antiphon.tools.code_interpreter.tool import OpenUpload


class FileUploads:
    """The uploaded files, for a tool that copies them."""

    def __init__(self, files: FileLibrary) -> None:
        self._files = files

    async def open(self, tenant: str, file_id: str, param: str) -> OpenUpload:
        """
        A file; `param` is the field that names it.

        Raises:
            ClientError: 404; there is none, or it is another tenant's.
        """
        record = await self._files.find(tenant, file_id, param)
        return OpenUpload(record.filename, self._files.chunks(record))


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
