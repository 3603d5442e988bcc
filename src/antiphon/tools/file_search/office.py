"""
The text of Word and PowerPoint files: XML in a zip archive.

An archive may unpack to a million times its size, and its table of contents may lie about that, so what is unpacked is
counted as it is read. Source of the elements' names: ECMA-376, parts 1 and 3.
"""

import codecs
import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from xml.etree import ElementTree

from antiphon.tools.file_search.formats import MAX_TEXT_CHARS, UnreadableFileError, too_much_text

MAX_MEMBERS = 10_000
MAX_XML_BYTES = 200_000_000
"""Unpacked, all parts that are read together: Word needs some 10 bytes for each character of a text."""

_RELATIONSHIP_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
codecs.lookup("cp437")  # For names in archives. Python loads a codec from a file, and the process that reads can open none.

_SLIDE = re.compile(r"ppt/slides/slide\d+\.xml")
_EXTRA_PARTS = re.compile(r"word/(?:footnotes|endnotes|header\d*|footer\d*)\.xml")
_HEADING_STYLE = re.compile(r"(?:Heading|heading |berschrift)(\d)|(Title)")

_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_BLANK_AREAS = frozenset({"Fallback", "pPrChange", "rPrChange", "del", "moveFrom", "tabs"})
"""Elements that are not shown: fallbacks for older programs, deleted or moved text, and the positions of tabs."""


def read_docx(content: bytes) -> str:
    """
    The text of a Word file, then its headers, footers and notes.

    Raises:
        UnreadableFileError: it is no such file, or is damaged or too large.
    """
    archive = _Archive(content)
    if "word/document.xml" not in archive.names:
        raise UnreadableFileError("invalid_file", "The file is no Word document, or is damaged.")
    extra_parts = sorted(name for name in archive.names if _EXTRA_PARTS.fullmatch(name))
    texts = [_text(archive.read(name)) for name in ("word/document.xml", *extra_parts)]
    # Each text once: sections often repeat a header.
    return "\n\n".join(dict.fromkeys(text for text in texts if text))


def read_pptx(content: bytes) -> str:
    """
    The text of a presentation, slide after slide, each with its notes.

    Raises:
        UnreadableFileError: it is no such file, or is damaged or too large.
    """
    archive = _Archive(content)
    if "ppt/presentation.xml" not in archive.names:
        raise UnreadableFileError("invalid_file", "The file is no presentation, or is damaged.")
    slides: list[str] = []
    for number, name in enumerate(_slide_names(archive), 1):
        notes = [target for target in _relationships(archive, name).values() if target.startswith("ppt/notesSlides/")]
        texts = [_text(archive.read(part)) for part in (name, *notes)]
        slides.append("\n".join((f"Slide {number}", *filter(None, texts))))
    return "\n\n".join(slides)


class _Archive:
    """The parts of an Office file, unpacked within limits of number and size."""

    def __init__(self, content: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
            raise UnreadableFileError("invalid_file", "The file is no Office document of 2007 or later, or is damaged.") from None
        self.names = frozenset(self._zip.namelist())
        if len(self.names) > MAX_MEMBERS:
            raise UnreadableFileError("invalid_file", f"The file has more than {MAX_MEMBERS} parts, the limit.")
        self._room = MAX_XML_BYTES

    def read(self, name: str) -> bytes:
        try:
            with self._zip.open(name) as member:
                content = member.read(self._room + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, RuntimeError, NotImplementedError):
            raise UnreadableFileError("invalid_file", "A part of the file is damaged, or needs a password.") from None
        if len(content) > self._room:
            raise UnreadableFileError("invalid_file", f"The file unpacks to more than {MAX_XML_BYTES} bytes, the limit.")
        self._room -= len(content)
        return content


def _events(content: bytes) -> Iterator[tuple[str, ElementTree.Element]]:
    """Each element as it begins and ends; what has ended is forgotten."""
    # Office writes no document types, and entities could expand without end, so a file with one is refused.
    # So is UTF-16, in which this search would not find it.
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content or b"\0" in content[:4096]:
        raise UnreadableFileError("invalid_file", "A part of the file is not as Office writes it.")
    try:
        for event, element in ElementTree.iterparse(io.BytesIO(content), ("start", "end")):
            yield event, element
            if event == "end":
                element.clear()
    except (ElementTree.ParseError, LookupError, ValueError):
        raise UnreadableFileError("invalid_file", "A part of the file is damaged.") from None


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(content: bytes) -> str:
    """The text of a part: a line for each paragraph, and for each row of a table one with its cells."""
    lines = _Lines()
    blank_depth = 0
    for event, element in _events(content):
        name = _local(element)
        if name in _BLANK_AREAS:
            blank_depth += 1 if event == "start" else -1
        if blank_depth:
            continue
        if event == "start":
            lines.open(name, element)
        else:
            lines.close(name, element)
    return "\n".join(lines.lines)


class _Lines:
    """Lines as they grow; `w` elements are Word's, `a` elements PowerPoint's, and the names that matter are the same."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._runs: list[list[str]] = []  # Of the open paragraphs, as a text box may stand inside one.
        self._rows: list[list[list[str]]] = []  # the open rows' cells, with their lines
        self._chars = 0

    def open(self, name: str, element: ElementTree.Element) -> None:
        if name == "p":
            self._runs.append([])
        elif name == "tr":
            self._rows.append([])
        elif name == "tc" and self._rows:
            self._rows[-1].append([])
        elif name in ("pStyle", "br", "tab", "cr", "noBreakHyphen") and self._runs:
            self._runs[-1].append(_BREAKS.get(name) or _heading_mark(element))

    def close(self, name: str, element: ElementTree.Element) -> None:
        if name == "t" and self._runs and element.text:
            self._chars += len(element.text)
            if self._chars > MAX_TEXT_CHARS:
                raise too_much_text()
            self._runs[-1].append(element.text)
        elif name == "p" and self._runs:
            self._add_line("".join(self._runs.pop()).strip())
        elif name == "tr" and self._rows:
            cells = (" ".join(lines) for lines in self._rows.pop())
            self._add_line(" | ".join(cells).strip())

    def _add_line(self, line: str) -> None:
        if self._rows and self._rows[-1]:
            if line:
                self._rows[-1][-1].append(line)
        elif line or (self.lines and self.lines[-1]):
            self.lines.append(line)


def _heading_mark(style: ElementTree.Element) -> str:
    value = next((value for key, value in style.attrib.items() if key.endswith("}val")), "")
    if not (match := _HEADING_STYLE.search(value)):
        return ""
    return "#" * min(int(match[1] or 1) or 1, 6) + " "


def _slide_names(archive: _Archive) -> list[str]:
    """The slides in the order in which they are shown."""
    targets = _relationships(archive, "ppt/presentation.xml")
    ids = [
        element.get(_RELATIONSHIP_ID, "")
        for event, element in _events(archive.read("ppt/presentation.xml"))
        if event == "start" and _local(element) == "sldId"
    ]
    names = [targets[id] for id in dict.fromkeys(ids) if id in targets]
    return [name for name in names if _SLIDE.fullmatch(name)]


def _relationships(archive: _Archive, name: str) -> dict[str, str]:
    """The parts that a part refers to, by the id that it has for them."""
    folder, file = posixpath.split(name)
    path = f"{folder}/_rels/{file}.rels"
    if path not in archive.names:
        return {}
    targets = {
        element.get("Id", ""): posixpath.normpath(posixpath.join("/", folder, element.get("Target", ""))).lstrip("/")
        for event, element in _events(archive.read(path))
        if event == "start" and _local(element) == "Relationship"
    }
    return {id: target for id, target in targets.items() if target in archive.names}
