"""The text of PDF files, by PDFium."""

import re

import pypdfium2

from antiphon.tools.file_search.formats import MAX_TEXT_CHARS, UnreadableFileError, too_much_text

_PASSWORD_ERROR = 4
"""`FPDF_ERR_PASSWORD`; source: fpdfview.h of PDFium."""

_LINE_HYPHEN = re.compile("[\ufffe\x02]\r?\n?")
"""PDFium's marks for a hyphen that divides a word at the end of a line."""


def read_pdf(content: bytes) -> str:
    """
    The text of all pages, with an empty line between them.

    Raises:
        UnreadableFileError: the file is damaged or needs a password, or there is too much text in it.
    """
    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD_ERROR:
            raise UnreadableFileError("invalid_file", "The PDF file can't be read without its password.") from None
        raise UnreadableFileError("invalid_file", "The file is no PDF, or is damaged.") from None
    pages: list[str] = []
    chars = 0
    for index in range(len(document)):
        pages.append(_page_text(document, index))
        chars += len(pages[-1])
        if chars > MAX_TEXT_CHARS:
            raise too_much_text()
    return "\n\n".join(page for page in pages if page)


def _page_text(document: pypdfium2.PdfDocument, index: int) -> str:
    """The text of a page; a page that is damaged has none, and the others are read."""
    try:
        page = document[index]
        try:
            text = page.get_textpage().get_text_range(errors="ignore")
        finally:
            page.close()
    except pypdfium2.PdfiumError:
        return ""
    return _LINE_HYPHEN.sub("", text)
