"""A terminal's output as SVG: text stays text, nothing is fetched, and it is legible on light and on dark pages."""

import io
import re
import unicodedata
from typing import TextIO
from xml.sax.saxutils import escape

_CELL_PX, _LINE_PX, _PADDING_PX, _BAR_PX = 8.4, 20, 16, 36
"""For a font of 14 px; the monospace fonts of today's systems have cells of 7.7 to 8.4 px."""

_STYLES = (
    ("title", re.compile(r"()(\d+  \S.*)()")),
    ("user", re.compile(r"(  +)(you|tool)(  .*)")),
    ("model", re.compile(r"(  +)(\w{1,6})(  .*)")),
    ("remark", re.compile(r"( {10})(\d+\.\d+ s, .*|first token .*|speech end .*|its audio .*)()")),
)
"""Which part of a line stands out, and how: the first that matches the whole line."""

_NOT_XML = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; }}
rect {{ fill: #f6f8fa; stroke: #8c959f; }}
.title {{ font-weight: bold; }}
.user {{ fill: #0550ae; }}
.model {{ fill: #116329; }}
.remark, .bar {{ fill: #59636e; }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3; }}
rect {{ fill: #0d1117; stroke: #6e7681; }}
.user {{ fill: #79c0ff; }}
.model {{ fill: #7ee787; }}
.remark, .bar {{ fill: #9198a1; }}
}}
</style>
<rect x="0.5" y="0.5" width="{inner_width}" height="{inner_height}" rx="8" />
<text class="bar" x="{middle}" y="23" text-anchor="middle">{title}</text>
{lines}
</svg>
"""


class OutputRecorder(io.StringIO):
    """Passes output on and keeps it; it is no terminal, so that nothing is drawn over."""

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._target = target

    def write(self, text: str) -> int:
        self._target.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._target.flush()


def terminal_svg(title: str, output: str, columns: int) -> str:
    """
    A picture of a terminal.

    Args:
        title: the command that was typed.
        output: what it printed, as commands of this program print conversations.
        columns: how wide the terminal is; a longer line makes it wider.
    """
    lines = [_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", line.expandtabs()) for line in output.strip("\n").split("\n")]
    width = round(max(columns, *map(_cells, lines)) * _CELL_PX) + 2 * _PADDING_PX
    height = _BAR_PX + len(lines) * _LINE_PX + _PADDING_PX
    texts = (_draw_line(line, _BAR_PX + (number + 1) * _LINE_PX - 6) for number, line in enumerate(lines) if line.strip())
    return _SVG.format(
        title=escape(title),
        width=width,
        height=height,
        inner_width=width - 1,
        inner_height=height - 1,
        middle=width / 2,
        lines="\n".join(texts),
    )


def _draw_line(line: str, y: int) -> str:
    style, before, text, after = _style_line(line)
    content = escape(line) if style is None else f'{escape(before)}<tspan class="{style}">{escape(text)}</tspan>{escape(after)}'
    return f'<text x="{_PADDING_PX}" y="{y}" xml:space="preserve">{content}</text>'


def _style_line(line: str) -> tuple[str | None, str, str, str]:
    for style, pattern in _STYLES:
        if match := pattern.fullmatch(line):
            return style, match[1], match[2], match[3]
    return None, "", "", ""


def _cells(line: str) -> int:
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)
