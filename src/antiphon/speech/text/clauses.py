"""
Cuts a stream of text into what can be spoken at once: a first clause soon, then sentences.

Nothing is lost or changed: the pieces joined are the text. A piece ends behind white space, so that the next one begins with a word.
A model may write anything, so no text costs more than a few microseconds a character: what is looked at is never longer than `_HELD`.
"""

import re
from collections.abc import Iterator

MIN_FIRST_CLAUSE_CHARS = 12
"""Characters that the first clause has at least; fewer sound chopped off, and save next to nothing."""

MAX_SENTENCE_CHARS = 240
"""Characters after which a sentence is cut at its last comma, or else at its last word."""

_MAX_BUFFER_CHARS = 4 * MAX_SENTENCE_CHARS
"""Characters after which a word is cut, such as an address; so no piece is longer."""

_ABBREVIATIONS = frozenset(
    (
        "mr mrs ms dr prof st sr jr vs etc e.g i.e cf al approx dept est fig no vol pp ed eds inc ltd co corp gen col sgt capt lt rev hon "
        "gov sen rep jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun a.m p.m u.s u.k ave blvd "
        "rd mt ft z.b d.h u.a bzw usw ca nr str bspw ggf evtl p.ej sra av"
    ).split()
)
"""Words whose full stop ends no sentence; some do, now and then, and a sentence is then spoken with the next."""

_WORD_BEFORE = re.compile(r"([^\s(\[\"'“‘*_]+)$")
# Words that a phrase begins with, in English: before one of them a speaker may draw breath.
_PHRASE_START = re.compile(
    r"\s(?=(?:and|or|but|nor|yet|so|to|that|which|who|whose|where|when|while|because|since|if|unless|though|although|as|than|with|without|"
    r"for|from|of|in|into|on|onto|at|by|about|between|through|during|before|after|until|is|are|was|were|can|could|will|would|should)\s)"
)

_GAP = re.compile(r"(?<!\s)\s++(?=\S)")
_INITIALS = re.compile(r"(?:[A-Za-zÀ-Þ]\.)*[A-Za-zÀ-Þ]")
_CLOSERS = "\"'”’)]*_»"

# A mark and what closes behind it, then white space and the next character, which tells whether a sentence begins there. A row of marks is
# looked at from its first one only: from each of them it would take the square of their number.
_BREAK = re.compile(
    r"\n"
    rf"|(?<![.!?…])(?P<stop>[.!?…]++)[{re.escape(_CLOSERS)}]*[^\S\n]+(?=(?P<next>\S))"
    r"|(?P<wide>[。！？])[”』」）]*"
    r"|(?P<comma>[,;:—–]|[，；：、])(?P<gap>[^\S\n]+(?=\S)|)"
)


class ClauseSplitter:
    """
    The text of one answer, as it comes.

    Args:
        soon: whether its first clause is wanted before its first sentence is whole.
    """

    def __init__(self, *, split_first_clause: bool = True) -> None:
        self._buffer = ""
        self._scan_from = 0  # so far there is no cut in what is held
        self._last_clause_end = 0  # where the last clause ends in it
        self._is_first = split_first_clause
        self._is_late = False

    def feed(self, text: str, *, is_late: bool = False) -> list[str]:
        """
        More of the text; the pieces that are whole with it.

        Args:
            is_late: whether somebody has waited for the first clause for so long that its first phrases will do.
        """
        self._is_late = is_late
        return [piece for at in range(0, len(text), _MAX_BUFFER_CHARS) for piece in self._split(text[at : at + _MAX_BUFFER_CHARS])]

    def flush(self) -> list[str]:
        """The rest: nothing more comes."""
        rest, self._buffer = self._buffer, ""
        self._scan_from = self._last_clause_end = 0
        return [rest] if rest else []

    def _split(self, text: str) -> Iterator[str]:
        self._buffer += text
        while end := self._find_end():
            piece, self._buffer = self._buffer[:end], self._buffer[end:]
            self._scan_from = self._last_clause_end = 0
            self._is_first = self._is_first and not piece.strip()
            yield piece

    def _find_end(self) -> int:
        """Where the first piece ends in what is held; 0 where that can't be known yet."""
        for found in _BREAK.finditer(self._buffer, self._scan_from):
            end = found.end()
            if end > MAX_SENTENCE_CHARS:
                break
            if found["comma"]:
                if not self._ends_clause(found):
                    continue
                if self._is_first and len(self._buffer[:end].strip()) >= MIN_FIRST_CLAUSE_CHARS:
                    return end
                self._last_clause_end = end
            elif self._ends_sentence(found):
                return end
        self._scan_from = max(self._scan_from, self._stable_length())
        if self._is_first and self._is_late and (end := self._phrase_end()):
            return end
        return self._forced_end() if len(self._buffer) > MAX_SENTENCE_CHARS else 0

    def _phrase_end(self) -> int:
        """Where the last phrase begins of those that are held; 0 where there is but one."""
        begins = [
            found.end()
            for found in _PHRASE_START.finditer(self._buffer, 0, MAX_SENTENCE_CHARS)
            if not self._is_within_brackets(found.start())
        ]
        return next((end for end in reversed(begins) if len(self._buffer[:end].strip()) >= MIN_FIRST_CLAUSE_CHARS), 0)

    def _stable_length(self) -> int:
        """How far what is held looks the same whatever comes: a mark and what is behind it may yet grow."""
        return len(self._buffer.rstrip().rstrip(_CLOSERS).rstrip(".!?…,;:—–"))

    def _ends_clause(self, match: re.Match[str]) -> bool:
        mark, gap = match["comma"], match["gap"]
        return (bool(gap) or mark in "，；：、—") and not self._is_within_brackets(match.start())

    def _ends_sentence(self, match: re.Match[str]) -> bool:
        if not match["stop"]:
            return True
        if self._is_within_brackets(match.start()):
            return False
        if set(match["stop"]) != {"."}:
            return not match["next"].islower()
        return not match["next"].islower() and not (match["stop"] == "." and self._is_abbreviation(match.start()))

    def _is_abbreviation(self, stop: int) -> bool:
        """Whether the full stop there belongs to the word before it: an abbreviation, initials, or the number of a list's line."""
        word = _WORD_BEFORE.search(self._buffer, max(0, stop - 20), stop)
        if word is None:
            return False
        if word[1].isdecimal():
            return not self._buffer[self._buffer.rfind("\n", 0, stop) + 1 : word.start(1)].strip()
        return word[1].lower() in _ABBREVIATIONS or (_INITIALS.fullmatch(word[1]) is not None and word[1] != "I")

    def _is_within_brackets(self, end: int) -> bool:
        """Whether a link's text or its address, or code, is open there."""
        line = self._buffer[self._buffer.rfind("\n", 0, end) + 1 : end]
        return line.rfind("[") > line.rfind("]") or line.rfind("](") > line.rfind(")") or line.count("`") % 2 == 1

    def _forced_end(self) -> int:
        """Where a sentence is cut that is too long; words longer than that, such as addresses, are left whole a while."""
        if self._last_clause_end:
            return self._last_clause_end
        if spaces := list(_GAP.finditer(self._buffer, 0, MAX_SENTENCE_CHARS)):
            return spaces[-1].end()
        return MAX_SENTENCE_CHARS if len(self._buffer) > _MAX_BUFFER_CHARS else 0


def split_sentences(text: str) -> list[str]:
    """A whole text, cut."""
    clauses = ClauseSplitter(split_first_clause=False)
    return clauses.feed(text) + clauses.flush()
