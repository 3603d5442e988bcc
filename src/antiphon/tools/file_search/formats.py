"""What a file is, by the ending of its name and by its first bytes."""

from typing import Literal

from antiphon.errors import shorten
from antiphon.tools.file_search.failure import UnreadableFileError
from antiphon.tools.file_search.plain_text import decode_text

Format = Literal["text", "html", "pdf", "docx", "pptx"]

TEXT_ENDINGS = frozenset(
    """
    bat c cc cfg conf cpp cs css csv cxx dart diff go gradle graphql groovy h hpp hs hxx ini ipynb java jl js json jsonl jsx kt
    less lisp log lua m markdown md mdx mjs ml ndjson org patch php pl po properties proto ps1 py pyi r rb rs rst sass scala scss
    sh sql srt svelte swift tcl tex text toml ts tsv tsx txt vb vtt vue xml xsd yaml yml zig
    """.split()
)
"""What is text by its name: where it can't be decoded, the file is invalid, and not of a type that isn't read."""

_FORMATS: dict[str, Format] = {"htm": "html", "html": "html", "xhtml": "html", "pdf": "pdf", "docx": "docx", "pptx": "pptx"}
_PDF_MARK = b"%PDF-"
_ZIP_MARK = b"PK\x03\x04"
_HTML_MARKS = (b"<!doctype html", b"<html")
_MARK_BYTES = 1024
"""PDF readers accept a file whose mark is in its first 1024 bytes."""


def file_format(content: bytes, filename: str) -> Format:
    """
    What a file is.

    Raises:
        UnreadableFileError: nothing that is read.
    """
    ending = filename.rpartition(".")[2].lower() if "." in filename else ""
    if not content:
        raise UnreadableFileError("invalid_file", "The file is empty.")
    if ending in _FORMATS:
        return _FORMATS[ending]
    if ending in TEXT_ENDINGS:
        return "text"
    return _guess(content, ending)


def text_of(content: bytes) -> str:
    """
    The text of a file that is one.

    Raises:
        UnreadableFileError: it is none.
    """
    if (text := decode_text(content)) is None:
        raise UnreadableFileError("invalid_file", "The file is no text in UTF-8, UTF-16 or ASCII.")
    return text


def _guess(content: bytes, ending: str) -> Format:
    begin = content[:_MARK_BYTES]
    if _PDF_MARK in begin:
        return "pdf"
    if begin.startswith(_ZIP_MARK):
        # The names of a zip archive's parts stand in it as they are.
        if b"word/document.xml" in content:
            return "docx"
        if b"ppt/presentation.xml" in content:
            return "pptx"
    elif decode_text(content) is not None:
        return "html" if begin.lstrip().lower().startswith(_HTML_MARKS) else "text"
    kind = f"Files of the type '.{shorten(ending, 20)}'" if ending else "Files of this type"
    raise UnreadableFileError("unsupported_file", f"{kind} are not read. What is read is text, HTML, PDF, docx and pptx.")
