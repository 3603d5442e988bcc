"""
Cuts a text into chunks that overlap, and these into windows that a small encoder reads whole.

Chunks are what a search returns: 800 tokens of a model's own, of which neighbours share 400. Windows are what is
embedded: MiniLM reads 256 of its tokens and cuts off the rest, so of such a chunk it would see a third. Each window
belongs to one chunk, the one in which it is farthest from the edges; so what two chunks share is embedded once.

No tokenizer is at hand for the models behind this server, so tokens are estimated from letters.
"""

import functools
import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from msgspec import Struct

from antiphon.tools.file_search.formats import UnreadableFileError

MAX_TOKENS = 5_000_000
"""The most tokens of a file, as in the original."""

WINDOW_TOKENS = 200
"""Of an encoder that reads 256: the estimate may be a quarter too low."""

_SNAP_TOKENS = 24
"""By how much a window may be longer or shorter, so that it ends with a sentence."""

_LONGEST_WORD = 24
"""Longer ones are keys, hashes or the like, for which models need more tokens by the letter."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3100-\u318f\u31a0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Letters of scripts without blanks between words, or, as in Korean, with several words between two blanks; for a character class."""


_SENTENCE_END = re.compile(r"(?:[.!?…][\"'”’)\]]*\s+|[。！？]|\n)+")


_ASCII_PIECE = re.compile(r"(?P<word>\w(?:\w|'(?=[a-zA-Z]))*)|(?P<blank>\s+)|(?P<sign>.)", re.ASCII)


def _pieces(text: str, *span: int) -> Iterator[re.Match[str]]:
    """Words, letters of scripts without blanks, runs of blanks, and signs."""
    return (_ASCII_PIECE if text.isascii() else _piece()).finditer(text, *span)


@functools.cache
def _piece() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M")
    # What belongs to the character before it: marks, joiners, the tones of skin, tags.
    joining = marks + "\u200c\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f\U000e0100-\U000e01ef"
    return re.compile(
        rf"(?P<letter>[{UNSPACED}][{joining}]*)"
        rf"|(?P<word>[^\W{UNSPACED}](?:[^\W{UNSPACED}]|[{joining}]|['’](?=[^\W\d_]))*)"
        rf"|(?P<blank>\s+)"
        rf"|(?P<sign>[\U0001f1e6-\U0001f1ff]{{2}}|[^\w\s](?:\u200d[^\w\s]|[{joining}])*)"
    )


class Chunking(Struct, frozen=True, kw_only=True):
    """
    How a text is cut; the defaults are what `auto` means.

    Attributes:
        max_tokens: of a chunk, about; 100 to 4096.
        overlap_tokens: that a chunk shares with the next; 0 to half of `max_tokens`.
    """

    max_tokens: int = 800
    overlap_tokens: int = 400


class Chunk(Struct, frozen=True):
    """A piece of a text, from the character `begin` to the one before `end`."""

    text: str
    begin: int
    end: int


class TextWindow(Struct, frozen=True):
    """A piece of a text that is embedded; `parent` is the position of its chunk."""

    text: str
    parent: int


def chunk(text: str, chunking: Chunking) -> list[Chunk]:
    """
    The chunks of a text in its order; none if there is nothing but blanks.

    No cut is inside a word, but for one that is longer than a chunk, and in scripts that don't separate words.

    Raises:
        UnreadableFileError: the text has too many tokens.
    """
    ruler = _Ruler(text, chunking.max_tokens, _model_tokens)
    if ruler.total > MAX_TOKENS:
        message = f"The file has about {ruler.total} tokens, and the limit is {MAX_TOKENS}."
        raise UnreadableFileError("invalid_file", message)
    chunks = (_strip(text, begin, end) for begin, end in _spans(ruler, chunking))
    return [each for each in chunks if each.text]


def cut_windows(text: str, chunks: list[Chunk]) -> list[TextWindow]:
    """What to embed of a text: windows in its order, which cover it once."""
    windows: list[TextWindow] = []
    begin = 0
    for position, own in enumerate(chunks):
        following = chunks[position + 1] if position + 1 < len(chunks) else None
        end = own.end if following is None else _seam(text, following.begin, own.end)
        windows += [TextWindow(window, position) for window in _cut(text[max(begin, own.begin) : end]) if window]
        begin = end
    return windows


def _spans(ruler: "_Ruler", chunking: Chunking) -> Iterator[tuple[int, int]]:
    first = 0
    while first < ruler.pieces:
        # At least one piece, even one that is over the limit: each turn must get ahead.
        end = max(ruler.last_within(first, chunking.max_tokens), first + 1)
        yield ruler.starts[first], ruler.starts[end]
        if end >= ruler.pieces:
            return
        first = max(ruler.first_beyond(end, chunking.overlap_tokens), first + 1)


def _strip(text: str, begin: int, end: int) -> Chunk:
    content = text[begin:end]
    begin += len(content) - len(content.lstrip())
    content = content.strip()
    return Chunk(content, begin, begin + len(content))


def _seam(text: str, begin: int, end: int) -> int:
    """Where the windows of one chunk end and the next one's begin, in what both share, or, if that is nothing, between them."""
    if begin >= end:
        return end
    middle = (begin + end) // 2
    ends = [match.end() for match in _SENTENCE_END.finditer(text, begin, end) if match.end() < end]
    if ends:
        return min(ends, key=lambda place: abs(place - middle))
    starts = [match.start() for match in _pieces(text, begin, end)]
    return min(starts, key=lambda place: abs(place - middle), default=end)


def _cut(text: str) -> Iterator[str]:
    """Windows of about the same length, each ending with a sentence where that is near."""
    ruler = _Ruler(text, WINDOW_TOKENS, _encoder_tokens)
    count = -(-ruler.total // WINDOW_TOKENS)
    ends = sorted({ruler.index(match.end()) for match in _SENTENCE_END.finditer(text)}) if count > 1 else []
    first = 0
    while first < ruler.pieces:
        rest = ruler.total - ruler.sums[first]
        # The rest in equal parts: a last window of two words would say nothing.
        size = rest / max(1, -(-rest // WINDOW_TOKENS))
        last = ruler.pieces if rest <= WINDOW_TOKENS else max(ruler.last_within(first, size), first + 1)
        if last < ruler.pieces:
            near = bisect_left(ends, ruler.last_within(last, -_SNAP_TOKENS)), bisect_right(ends, ruler.last_within(last, _SNAP_TOKENS))
            # A sentence that ends where the window begins would make an empty one.
            candidates = [end for end in ends[slice(*near)] if end > first]
            last = min(candidates, key=lambda end: abs(ruler.sums[end] - ruler.sums[last]), default=last)
        yield text[ruler.starts[first] : ruler.starts[last]].strip()
        first = last


class _Ruler:
    """
    The places where a text may be cut, and the tokens before each.

    Attributes:
        starts: of the pieces, in characters, and the end of the text.
        sums: tokens before each piece, and of the text.
    """

    def __init__(self, text: str, max_tokens: int, tokens: Callable[[str, str], int]) -> None:
        self.starts = array("q")
        self.sums = array("q")
        total = 0
        for match in _pieces(text):
            kind, start, end = match.lastgroup or "", match.start(), match.end()
            piece = text[start:end]
            # What is longer than a chunk is cut after as many characters as that has tokens: none has more than one.
            step = len(piece) if (cost := tokens(kind, piece)) <= max_tokens else max_tokens
            for begin in range(start, end, step):
                self.starts.append(begin)
                self.sums.append(total)
                total += cost if step == len(piece) else tokens(kind, text[begin : min(begin + step, end)])
        self.pieces = len(self.starts)
        self.starts.append(len(text))
        self.sums.append(total)
        self.total = total

    def index(self, place: int) -> int:
        """The piece that begins at a character, or the first after it."""
        return bisect_left(self.starts, place)

    def last_within(self, first: int, tokens: float) -> int:
        """The last place where a piece of the text that begins with `first` may end, to have so many tokens at most."""
        return min(max(bisect_right(self.sums, self.sums[first] + tokens) - 1, 0), self.pieces)

    def first_beyond(self, end: int, tokens: int) -> int:
        """The first place where a piece of the text that ends with `end` may begin, to have so many tokens at most."""
        return bisect_left(self.sums, self.sums[end] - tokens)


def _model_tokens(kind: str, piece: str) -> int:
    """As models with a vocabulary of 100,000 and more count: about 3 tokens for 4 words of English, with their signs."""
    if kind == "blank":
        return 0 if piece == " " else 1 + len(piece) // 16
    if kind != "word":
        return (len(piece) + 3) // 4
    if len(piece) > _LONGEST_WORD:
        return len(piece) // 2
    return (len(piece) + 6) // 7 if piece.isascii() else (len(piece.encode("utf-8", "surrogatepass")) + 4) // 5


def _encoder_tokens(kind: str, piece: str) -> int:
    """As MiniLM's vocabulary of 30,000 has it: English in pieces of words, other scripts letter by letter."""
    if kind == "blank":
        return 0
    if kind != "word" or len(piece) > _LONGEST_WORD:
        return len(piece)
    letters = unicodedata.normalize("NFD", piece)
    foreign = sum(char > "\u036f" for char in letters)
    return foreign + (len(letters) - foreign + 5) // 6
