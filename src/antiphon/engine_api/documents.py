"""Documents and images in requests: what they are, and the text of those that are text."""

import base64
import binascii
import re
from pathlib import PurePosixPath

from msgspec import Struct

from antiphon.engine_api.history import FilePart, TextPart
from antiphon.errors import ClientError, file_too_large

MAX_DOCUMENT_BYTES = 20 << 20
"""The largest image or document."""

HEAD_BYTES = 4096
"""How much of a file is looked at to see what it is."""

IMAGE_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
)
"""First bytes of the supported image formats. Declared types are not trusted: they are often wrong."""

PDF_TYPE, TEXT_TYPE, BINARY_TYPE = "application/pdf", "text/plain", "application/octet-stream"

_SIGNATURES = (*IMAGE_SIGNATURES, (re.compile(rb"%PDF-"), PDF_TYPE))

_OFFICE_TYPES = {
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_TEXT_TYPES = {
    ".css": "text/css",
    ".csv": "text/csv",
    ".htm": "text/html",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".md": "text/markdown",
    ".py": "text/x-python",
    ".tsv": "text/tab-separated-values",
    ".xml": "text/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
"""Types of texts by the end of their name; any other text is `TEXT_TYPE`."""

_EXTENSIONS = {kind: extension for extension, kind in (_OFFICE_TYPES | _TEXT_TYPES | {".pdf": PDF_TYPE, ".txt": TEXT_TYPE}).items()}

_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

_DATA_URL = re.compile(r"data:(?P<type>[a-z]+/[a-z0-9.+-]+)?(?:;[a-z0-9_-]+=[^;,]*)*;base64,", re.IGNORECASE)


class FileContent(Struct, frozen=True):
    """
    A file's content.

    Attributes:
        url: a data URL with `media_type`.
    """

    url: str
    media_type: str
    filename: str | None = None

    @property
    def is_image(self) -> bool:
        """Whether it is an image of a supported format."""
        return self.media_type.startswith("image/")

    @property
    def file_part(self) -> FilePart:
        """The document for an engine that takes documents, which all need a name."""
        return FilePart(inline=self.url, filename=self.filename or f"file{_EXTENSIONS.get(self.media_type, '')}")


def media_type(head: bytes, filename: str | None, declared_type: str = "") -> str:
    """
    The type of a file.

    Args:
        head: its first `HEAD_BYTES`.
        filename: distinguishes between types that begin alike.
        declared_type: what its sender says that it is; counts only where the content does not tell.
    """
    kind = _visible_type(head, filename)
    # Only a text or an unknown binary may be named more precisely: images and PDF show themselves, and text stays text.
    if not declared_type or kind not in (TEXT_TYPE, BINARY_TYPE) or declared_type.startswith("image/") or declared_type == PDF_TYPE:
        return kind
    return declared_type if is_text_type(declared_type) == (kind == TEXT_TYPE) else kind


def _visible_type(head: bytes, filename: str | None) -> str:
    for signature, kind in _SIGNATURES:
        if signature.match(head):
            return kind
    extension = PurePosixPath(filename or "").suffix.lower()
    if head.startswith(b"PK\x03\x04"):
        return _OFFICE_TYPES.get(extension, "application/zip")
    return _TEXT_TYPES.get(extension, TEXT_TYPE) if _is_text(head) else BINARY_TYPE


def _is_text(head: bytes) -> bool:
    if head[:2] in _BYTE_ORDER_MARKS:
        return True
    if b"\0" in head:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) >= HEAD_BYTES and error.start > len(head) - 4  # a character that is cut off
    return True


def new_document(content: bytes, filename: str | None, declared_type: str = "") -> FileContent:
    """A file's content as a document; `declared_type` as in `media_type`."""
    kind = media_type(content[:HEAD_BYTES], filename, declared_type)
    return FileContent(f"data:{kind};base64,{base64.b64encode(content).decode()}", kind, filename)


def read_document(file_data: str, filename: str | None, param: str) -> FileContent:
    """
    A document that came in base64, or as a data URL.

    Args:
        param: the path of `file_data` in the request, for errors.

    Raises:
        ClientError: it is neither, or too large.
    """
    start = 0
    if file_data[:5].lower() == "data:":
        header = _DATA_URL.match(file_data)
        if header is None:
            raise _invalid_file_data(param, "a data URL must be base64")
        start = header.end()
    # Before it is decoded; with padding it seems up to two bytes longer than it is.
    if (len(file_data) - start) * 3 // 4 > MAX_DOCUMENT_BYTES + 2:
        raise file_too_large(param, MAX_DOCUMENT_BYTES)
    try:
        content = binascii.a2b_base64(file_data[start:], strict_mode=True)
    except ValueError:  # also where it is not ASCII
        raise _invalid_file_data(param, "it is not valid base64") from None
    declared_type = file_data[5:start].partition(";")[0].lower() if start else ""
    kind = media_type(content[:HEAD_BYTES], filename, declared_type)
    return FileContent(f"data:{kind};base64,{file_data[start:]}", kind, filename)


def _invalid_file_data(param: str, problem: str) -> ClientError:
    return ClientError(f"Invalid '{param}': {problem}.", code="invalid_value", param=param)


def is_text_type(kind: str) -> bool:
    """Whether files of a type are text."""
    return kind.startswith("text/") or kind in _TEXT_TYPES.values() or kind.endswith(("+json", "+xml", "/xml"))


def text_part(part: FilePart) -> TextPart | None:
    """The text of a document in base64, with its name, for an engine that takes no documents; None if it has none."""
    if part.inline is None or not (header := _DATA_URL.match(part.inline)) or not is_text_type((header["type"] or "").lower()):
        return None
    content = binascii.a2b_base64(part.inline[header.end() :])
    # `utf-8-sig` also drops UTF-8's own mark, which some editors write.
    encoding = _BYTE_ORDER_MARKS.get(content[:2], "utf-8-sig")
    # The name is an attribute in quotation marks.
    name = (part.filename or "file").replace('"', "'")
    return TextPart(f'<file name="{name}">\n{content.decode(encoding, "replace")}\n</file>\n')
