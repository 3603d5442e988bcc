"""
The text of a page as its reader sees it: of HTML, and of types that are text already.

Pages are written by anybody, so this takes time in proportion to a page's length, whatever is in it. HTML parsers that
build the tree of the standard don't: lexbor takes 142 seconds for 200,000 nested `<div>`. There is no tree here, only
the stack of open elements, which is needed to know where a hidden one ends.

Source: HTML Living Standard, 13.2.3.2 (encodings), 13.2.5 (tokenization), 15.3.1 (hidden elements), 13.1.2.4 (optional tags).
"""

import html
import re
from collections import Counter

from msgspec import Struct

from antiphon.tools.web_search.base import SearchFailure

MAX_TITLE_CHARS = 300

_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_RAW = frozenset("iframe noembed noframes script style textarea title xmp".split())
# What is not shown as text, or is no text of the page.
_HIDDEN = frozenset(
    "audio button canvas datalist dialog embed iframe map math noembed noframes noscript object script select style svg template "
    "textarea video".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body br caption center dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 "
    "h6 header hr legend li main menu nav ol p pre section summary table tbody td tfoot th thead title tr ul".split()
)
_ENDS_PARAGRAPH = _BLOCKS - {"body", "br", "caption", "legend", "summary", "tbody", "td", "tfoot", "th", "thead", "title", "tr"}
# An element of the key ends one of the value that is still open directly around it.
_ENDS = {
    "li": {"li"},
    "dt": {"dt", "dd"},
    "dd": {"dt", "dd"},
    "td": {"td", "th"},
    "th": {"td", "th"},
    "tr": {"td", "th", "tr"},
    "tbody": {"td", "th", "tr", "thead"},
    "tfoot": {"td", "th", "tr", "tbody"},
    "option": {"option"},
}
_PREFIXES = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "h5": "##### ", "h6": "###### ", "li": "- "}

_MARKUP = re.compile(r"<(?:!--|[!?]|(/?)([a-zA-Z][^\s/>]*))")
# A quote counts only behind `=`, as in the standard. No two parts can match the same, so there is nothing to try twice.
_ATTRIBUTE = re.compile(r"""[\s/]*+([^\s/>=][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"'][^\s>]*+|(?=[\s>]))))?+""")
_SPACES = re.compile(r"[\s/]*")
_STYLE = re.compile(r"display:none|visibility:(?:hidden|collapse)|opacity:0(?:\.0*)?(?:[;!]|$)|font-size:0(?:[a-z%]*)(?:[;!]|$)")
_INVISIBLE = re.compile(
    # Soft hyphens, zero width, directions, and the tags and variation selectors in which text can be hidden.
    "[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e0fff]"
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]"
)


class PageText(Struct, frozen=True):
    """A page's title, and its text in light Markdown."""

    title: str
    text: str


HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = ("text/", "application/json", "application/xml", "application/rss+xml", "application/atom+xml", "application/ld+json")
FILE_TYPES = {
    ".htm": "text/html",
    ".html": "text/html",
    ".xhtml": "text/html",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".txt": "text/plain",
    ".rst": "text/plain",
    ".text": "text/plain",
}
"""Types of the files in a folder, by suffix."""

# WHATWG Encoding 4.2, by names that Python knows too. Python has others, and some of them take time in proportion to the
# square of the length (`punycode`), or decode no text at all (`zip`).
_ENCODINGS = frozenset(
    "utf-8 utf8 us-ascii ascii utf-16 utf-16le utf-16be iso-8859-1 latin1 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 "
    "iso-8859-7 iso-8859-8 iso-8859-10 iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16 windows-1250 windows-1251 windows-1252 "
    "windows-1253 windows-1254 windows-1255 windows-1256 windows-1257 windows-1258 windows-874 koi8-r koi8-u macintosh ibm866 "
    "gbk gb2312 gb18030 big5 euc-jp shift_jis euc-kr".split()
)
# The standard reads these as their supersets of Windows.
_SUPERSETS = {
    "iso-8859-1": "windows-1252",
    "latin1": "windows-1252",
    "us-ascii": "windows-1252",
    "gb2312": "gb18030",
    "windows-874": "cp874",
}
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_META = re.compile(rb"""<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}["']?\s{0,9}([a-zA-Z0-9_-]{2,30})""", re.IGNORECASE)
_META_BYTES = 1024


def to_text(body: bytes, content_type: str, charset: str) -> PageText:
    """
    A page's title and text.

    Raises:
        SearchFailure: it has no text.
    """
    if not content_type.startswith(TEXT_TYPES) and content_type not in HTML_TYPES:
        raise SearchFailure(f"The page is of type '{content_type[:60]}', and only text can be read.")
    text = decode(body, charset)
    if content_type in HTML_TYPES:
        return extract(text)
    # Indentation means something in text and code.
    text = tidy(text, keeps_spaces=True)
    first_line = next((line for line in text.splitlines()[:50] if line.strip()), "")
    return PageText(first_line.lstrip("# ")[:MAX_TITLE_CHARS], text)


def decode(body: bytes, charset: str) -> str:
    """Bytes as text; what can't be decoded becomes U+FFFD. Source: WHATWG HTML 13.2.3.2, WHATWG Encoding 6."""
    # A byte order mark wins over the header's charset.
    for mark, encoding in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    name = charset.strip().lower()
    if name not in _ENCODINGS:
        declaration = _META.search(body[:_META_BYTES])
        name = declaration[1].decode().lower() if declaration else "utf-8"
        # Bytes in which an ASCII declaration was found are not in UTF-16, whatever it says.
        name = "utf-8" if name.startswith("utf-16") else name
    if name not in _ENCODINGS:
        name = "utf-8"
    return body.decode(_SUPERSETS.get(name, name), "replace")


def extract(page: str) -> PageText:
    """The text of a page of HTML."""
    reader = _Reader(page)
    reader.read()
    return PageText(tidy(reader.title)[:MAX_TITLE_CHARS].replace("\n", " "), tidy("".join(reader.pieces)))


def unescape(text: str) -> str:
    """Resolve the character references in a text, such as `&amp;`."""
    # `html.unescape` raises a ValueError for a number with more than 4300 digits.
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text))


_LONG_NUMBER = re.compile(r"&#[xX]?[0-9a-fA-F]{9,}+;?")


def tidy(text: str, *, keeps_spaces: bool = False) -> str:
    """Text without invisible characters, and with no more white space than it needs."""
    lines = (line.rstrip() if keeps_spaces else " ".join(line.split()) for line in _INVISIBLE.sub("", text).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Reader:
    def __init__(self, page: str) -> None:
        self._page = page
        self._open: list[str] = []
        self._counts: Counter[str] = Counter()
        self._hidden_depth: int | None = None
        self.title = ""
        self.pieces: list[str] = []

    def read(self) -> None:
        page, place = self._page, 0
        while (markup := _MARKUP.search(page, place)) is not None:
            self._add_text(page[place : markup.start()])
            place = self._read_markup(markup)
        self._add_text(page[place:])

    def _read_markup(self, markup: re.Match[str]) -> int:
        """Read a tag, comment or declaration; returns the position of the text after it."""
        name = markup[2]
        if name is None:
            return self._end_of("-->" if markup[0] == "<!--" else ">", markup.end())
        name = name.lower()
        end, attributes = self._read_attributes(markup.end(), wants_values=not markup[1])
        if markup[1]:
            self._close(name)
            return end
        self._start(name, attributes)
        if name in _RAW:
            return self._read_raw(name, end)
        return end

    def _end_of(self, text: str, place: int) -> int:
        end = self._page.find(text, place)
        return len(self._page) if end < 0 else end + len(text)

    def _read_attributes(self, place: int, *, wants_values: bool) -> tuple[int, dict[str, str]]:
        page = self._page
        attributes: dict[str, str] = {}
        while (attribute := _ATTRIBUTE.match(page, place)) is not None:
            place = attribute.end()
            # HTML, 13.2.5.33: of attributes with one name the first counts.
            if wants_values and len(attributes) < 100:
                attributes.setdefault(attribute[1].lower(), attribute[2] or attribute[3] or attribute[4] or "")
        place = _SPACES.match(page, place).end()  # type: ignore[union-attr]  # It matches the empty text, too.
        # A stray `=`, or a quotation that never ends: whatever comes up to `>` belongs to the tag.
        return (place + 1 if page.startswith(">", place) else self._end_of(">", place)), attributes

    def _read_raw(self, name: str, place: int) -> int:
        end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(self._page, place)
        stop = len(self._page) if end is None else end.start()
        if name == "title" and not self.title and self._hidden_depth is None:
            self.title = unescape(self._page[place:stop])
        if end is None:
            return stop
        self._close(name)
        return self._end_of(">", end.end())

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name in _ENDS_PARAGRAPH and self._open and self._open[-1] == "p":
            self._close("p")
        while self._open and self._open[-1] in _ENDS.get(name, ()):
            self._close(self._open[-1])
        is_hidden = _is_hidden(name, attributes)
        if name in _VOID:
            if not is_hidden:
                self._break_line(name)
            return
        self._open.append(name)
        self._counts[name] += 1
        if is_hidden and self._hidden_depth is None:
            self._hidden_depth = len(self._open)
        self._break_line(name)

    def _close(self, name: str) -> None:
        # Asked first, so that an end tag without an element does not walk the whole stack.
        if not self._counts[name]:
            return
        while True:
            last = self._open.pop()
            self._counts[last] -= 1
            self._break_line(last, is_end=True)
            if self._hidden_depth is not None and len(self._open) < self._hidden_depth:
                self._hidden_depth = None
            if last == name:
                return

    def _break_line(self, name: str, *, is_end: bool = False) -> None:
        if self._hidden_depth is not None or name not in _BLOCKS:
            return
        if name in ("td", "th"):
            self.pieces.append(" | " if is_end else "")
        elif name in ("br", "tr", "li", "dt", "dd"):
            self.pieces.append("" if is_end else f"\n{_PREFIXES.get(name, '')}")
        else:
            self.pieces.append("\n\n" if is_end else f"\n\n{_PREFIXES.get(name, '')}")

    def _add_text(self, text: str) -> None:
        if text and self._hidden_depth is None:
            # In HTML a line end is a space; the lines here are those of blocks.
            text = unescape(text)
            self.pieces.append(text if "pre" in self._open[-3:] else re.sub(r"\s+", " ", text))


def _is_hidden(name: str, attributes: dict[str, str]) -> bool:
    # HTML: a dialog is shown only while it is open.
    if name == "dialog":
        return "open" not in attributes
    if name in _HIDDEN or "hidden" in attributes or attributes.get("aria-hidden", "").lower() == "true":
        return True
    style = attributes.get("style", "")
    return bool(style) and _STYLE.search("".join(unescape(style[:2000]).lower().split())) is not None
