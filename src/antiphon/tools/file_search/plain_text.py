"""Bytes as text, and text without what no reader sees."""

import codecs
import re

from antiphon.tools.file_search.failure import UnreadableFileError

MAX_TEXT_CHARS = 24_000_000
"""Of a file: 5,000,000 tokens of English, which is the limit of chunks."""

_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_UTF32_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)

_SAMPLE_BYTES = 4096
_MAX_CONTROL_SHARE = 0.02
"""More control characters than this mean that it is no text."""

_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\r\n?|[\v\f\u0085\u2028\u2029]")
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n){2,}")


def decode_text(content: bytes) -> str | None:
    """The text that the bytes are in UTF-8 (of which ASCII is a part) or UTF-16; None if they are none."""
    if content.startswith(_UTF32_MARKS):
        return None
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if content.startswith(mark)), None) or _guess(content)
    try:
        text = content.decode(encoding)
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
    """The file has more text than is read."""
    return UnreadableFileError("invalid_file", f"The file has more than {MAX_TEXT_CHARS} characters of text, the limit.")


def _guess(content: bytes) -> str:
    """UTF-16 without a byte order mark has a zero in every second byte of Latin text; text in UTF-8 has none."""
    sample = content[:_SAMPLE_BYTES]
    if len(content) % 2 == 0 and len(sample) >= 2:
        if sample[1::2].count(0) > 0.4 * len(sample[1::2]) and not sample[0::2].count(0):
            return "utf-16-le"
        if sample[0::2].count(0) > 0.4 * len(sample[0::2]) and not sample[1::2].count(0):
            return "utf-16-be"
    return "utf-8"
