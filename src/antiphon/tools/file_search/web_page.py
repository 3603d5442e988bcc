"""The text of HTML, as a reader of the page sees it."""

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from antiphon.tools.file_search.formats import MAX_TEXT_CHARS, too_much_text

_UNSEEN = frozenset(
    {
        "script",
        "style",
        "template",
        "noscript",
        "svg",
        "math",
        "iframe",
        "object",
        "embed",
        "canvas",
        "audio",
        "video",
        "datalist",
        "meta",
        "link",
    }
)
_BLOCKS = frozenset(
    """
    address article aside blockquote body caption dd details dialog div dl dt fieldset figcaption figure footer form header hr
    html legend li main menu nav ol optgroup option p pre section select summary table tbody tfoot thead title tr ul
    """.split()
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS = frozenset({"p", "table", "ul", "ol", "dl", "pre", "blockquote", "section", "article", "title", *_HEADINGS})

_BLANKS = re.compile(r"\s+")
_HIDDEN_STYLE = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)


def read_html(text: str) -> str:
    """
    The text of a page: each block on a line of its own, headings and list entries marked as in Markdown, cells of tables
    separated by ` | `. Scripts and what is hidden are left out.

    Raises:
        UnreadableFileError: there is too much text.
    """
    page = LexborHTMLParser(text)
    writer = _Writer()
    if page.head is not None and (title := page.head.css_first("title")) is not None:
        writer.walk(title)
    if page.body is not None:
        writer.walk(page.body)
    return writer.text()


class _Writer:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0
        self._preformatted_depth = 0

    def walk(self, root: LexborNode) -> None:
        """Write a node and what is in it. No recursion: a page may nest its elements as deep as it likes."""
        stack: list[tuple[LexborNode, bool]] = [(root, False)]
        while stack:
            node, is_over = stack.pop()
            tag = node.tag or ""
            if is_over:
                self._close(tag)
            elif tag == "-text":
                self._write_text(node.text_content or "")
            elif not _is_unseen(node, tag):
                self._open(node, tag)
                stack.append((node, True))
                stack.extend((child, False) for child in reversed(list(node.iter(include_text=True))))

    def text(self) -> str:
        """The text so far, without blanks at the ends of lines."""
        lines = (line.rstrip() for line in "".join(self._parts).split("\n"))
        return "\n".join(lines)

    def _open(self, node: LexborNode, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._break(2)
        elif tag in _BLOCKS:
            self._break(1)
        if tag in _HEADINGS:
            self._write(_HEADINGS[tag])
        elif tag == "li":
            self._write("- ")
        elif tag in ("td", "th") and not self._is_line_begin:
            self._write(" | ")
        elif tag == "br":
            self._write("\n")
        elif tag == "img" and (alternative := node.attributes.get("alt")):
            self._write_text(alternative)
        elif tag == "pre":
            self._preformatted_depth += 1

    def _close(self, tag: str) -> None:
        if tag == "pre":
            self._preformatted_depth -= 1
        if tag in _PARAGRAPHS:
            self._break(2)
        elif tag in _BLOCKS:
            self._break(1)

    @property
    def _is_line_begin(self) -> bool:
        return not self._parts or self._parts[-1].endswith("\n")

    def _break(self, lines: int) -> None:
        """End the line, and leave `lines` - 1 empty ones."""
        if not self._parts:
            return
        present = 0
        for part in reversed(self._parts[-2:]):
            line = part.rstrip("\n")
            present += len(part) - len(line)
            if line:
                break
        if present < lines:
            self._write("\n" * (lines - present))

    def _write_text(self, text: str) -> None:
        if not self._preformatted_depth:
            text = _BLANKS.sub(" ", text)
            if self._is_line_begin or self._parts[-1].endswith(" "):
                text = text.lstrip(" ")
        if text:
            self._write(text)

    def _write(self, text: str) -> None:
        self._chars += len(text)
        if self._chars > MAX_TEXT_CHARS:
            raise too_much_text()
        self._parts.append(text)


def _is_unseen(node: LexborNode, tag: str) -> bool:
    # Lexbor's names for nodes that are no elements, such as `-comment`.
    if tag in _UNSEEN or tag.startswith(("-", "!", "#")):
        return True
    attributes = node.attributes
    return "hidden" in attributes or bool(_HIDDEN_STYLE.search(attributes.get("style") or ""))
