"""What a file is, by the ending of its name and by its first bytes; and files that are text, as that."""

import codecs
import re
from typing import Literal

from antiphon.errors import shorten

Format = Literal["text", "html", "pdf", "docx", "pptx"]

TEXT_ENDINGS = frozenset(
    """
    bat c cc cfg conf cpp cs css csv cxx dart diff go gradle graphql groovy h hpp hs hxx ini ipynb java jl js json jsonl jsx kt
    less lisp log lua m markdown md mdx mjs ml ndjson org patch php pl po properties proto ps1 py pyi r rb rs rst sass scala scss
    sh sql srt svelte swift tcl tex text toml ts tsv tsx txt vb vtt vue xml xsd yaml yml zig
    """.split()
)
"""Endings of text files. If such a file can't be decoded, it is invalid; any other is of an unsupported type."""

_FORMATS: dict[str, Format] = {"htm": "html", "html": "html", "xhtml": "html", "pdf": "pdf", "docx": "docx", "pptx": "pptx"}
_PDF_MARK = b"%PDF-"
_ZIP_MARK = b"PK\x03\x04"
_HTML_MARKS = (b"<!doctype html", b"<html")
_MARK_BYTES = 1024
"""PDF readers accept a file whose mark is in its first 1024 bytes."""

MAX_TEXT_CHARS = 24_000_000
"""Of a file: 5,000,000 tokens of English, which is the limit of chunks."""

_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
for _name in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
    codecs.lookup(_name)  # Python loads a codec from a file, and the processes that read files can open none.
_UTF32_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)

_SAMPLE_BYTES = 4096
_DIRECTORY_BYTES = 1 << 20
_MAX_CONTROL_SHARE = 0.02
"""More control characters than this mean that it is no text."""

_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\r\n?|[\v\f\u0085\u2028\u2029]")
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n){2,}")


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


def file_format(content: bytes, filename: str) -> Format:
    """
    What a file is.

    Raises:
        UnreadableFileError: it is empty, or of a type that is not read.
    """
    ending = filename.rpartition(".")[2].lower() if "." in filename else ""
    if not content:
        raise UnreadableFileError("invalid_file", "The file is empty.")
    # The name first: a text about PDF may have the mark of a PDF in it.
    if ending in _FORMATS:
        return _FORMATS[ending]
    if ending in TEXT_ENDINGS:
        return "text"
    return _guess(content, ending)


def text_of(content: bytes) -> str:
    """
    The text of a text file.

    Raises:
        UnreadableFileError: the bytes are no text.
    """
    if (text := decode_text(content)) is None:
        raise UnreadableFileError("invalid_file", "The file is no text in UTF-8, UTF-16 or ASCII.")
    return text


def _guess(content: bytes, ending: str) -> Format:
    begin = content[:_MARK_BYTES]
    if _PDF_MARK in begin:
        return "pdf"
    if begin.startswith(_ZIP_MARK):
        names = content[-_DIRECTORY_BYTES:]  # The directory at the end of the archive has the parts' names, uncompressed.
        if b"word/document.xml" in names:
            return "docx"
        if b"ppt/presentation.xml" in names:
            return "pptx"
    elif decode_text(content[:_SAMPLE_BYTES], is_whole=False) is not None:
        return "html" if begin.lstrip().lower().startswith(_HTML_MARKS) else "text"
    kind = f"Files of the type '.{shorten(ending, 20)}'" if ending else "Files of this type"
    raise UnreadableFileError("unsupported_file", f"{kind} are not read. What is read is text, HTML, PDF, docx and pptx.")


def decode_text(content: bytes, *, is_whole: bool = True) -> str | None:
    """
    The text that the bytes are in UTF-8 (of which ASCII is a part) or UTF-16; None if they are none.

    Args:
        is_whole: whether they are all of it: else the last character may be incomplete, and is left out.
    """
    # UTF-32 begins with the mark of UTF-16, and would be decoded as that.
    if content.startswith(_UTF32_MARKS):
        return None
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if content.startswith(mark)), None) or _guess_encoding(content)
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(content, is_whole)
    except UnicodeDecodeError:
        return None
    controls = len(_CONTROLS.findall(text))
    return text if controls <= _MAX_CONTROL_SHARE * len(text) else None


def tidy(text: str) -> str:
    """
    The text with one kind of line end, one empty line at most between two others, and without control characters.

    Raises:
        UnreadableFileError: nothing is left, or too much.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise too_much_text()
    text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))
    text = _EMPTY_LINES.sub("\n\n", text).strip()
    if not text:
        raise UnreadableFileError("invalid_file", "There is no text in the file.")
    return text


def too_much_text() -> UnreadableFileError:
    """The error for a file with more than `MAX_TEXT_CHARS`."""
    return UnreadableFileError("invalid_file", f"The file has more than {MAX_TEXT_CHARS} characters of text, the limit.")


def _guess_encoding(content: bytes) -> str:
    """UTF-16 without a byte order mark has a zero in every second byte of Latin text; text in UTF-8 has none."""
    sample = content[:_SAMPLE_BYTES]
    if len(content) % 2 == 0 and len(sample) >= 2:
        if sample[1::2].count(0) > 0.4 * len(sample[1::2]) and not sample[0::2].count(0):
            return "utf-16-le"
        if sample[0::2].count(0) > 0.4 * len(sample[0::2]) and not sample[1::2].count(0):
            return "utf-16-be"
    return "utf-8"
