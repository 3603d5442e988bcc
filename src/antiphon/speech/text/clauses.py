"""
Cuts a stream of text into what can be spoken at once: a first clause soon, then sentences.

Nothing is lost or changed: the pieces joined are the text. A piece ends behind white space, so that the next one begins with a word.
A model may write anything, so no text costs more than a few microseconds a character: what is looked at is never longer than `_HELD`.
"""

import re
from collections.abc import Iterator

FIRST_CLAUSE = 12
"""Characters that the first clause has at least; fewer sound chopped off, and save next to nothing."""

LONGEST = 240
"""Characters after which a sentence is cut at its last comma, or else at its last word."""

_HELD = 4 * LONGEST
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
_PHRASE = re.compile(
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


class Clauses:
    """
    The text of one answer, as it comes.

    Args:
        soon: whether its first clause is wanted before its first sentence is whole.
    """

    def __init__(self, *, soon: bool = True) -> None:
        self._held = ""
        self._looked = 0  # so far there is no cut in what is held
        self._comma = 0  # where the last clause ends in it
        self._is_first = soon
        self._is_late = False

    def take(self, text: str, *, is_late: bool = False) -> list[str]:
        """
        More of the text; the pieces that are whole with it.

        Args:
            is_late: whether somebody has waited for the first clause for so long that its first phrases will do.
        """
        self._is_late = is_late
        return [piece for at in range(0, len(text), _HELD) for piece in self._take(text[at : at + _HELD])]

    def flush(self) -> list[str]:
        """The rest: nothing more comes."""
        rest, self._held = self._held, ""
        self._looked = self._comma = 0
        return [rest] if rest else []

    def _take(self, text: str) -> Iterator[str]:
        self._held += text
        while end := self._end():
            piece, self._held = self._held[:end], self._held[end:]
            self._looked = self._comma = 0
            self._is_first = self._is_first and not piece.strip()
            yield piece

    def _end(self) -> int:
        """Where the first piece ends in what is held; 0 where that can't be known yet."""
        for found in _BREAK.finditer(self._held, self._looked):
            end = found.end()
            if end > LONGEST:
                break
            if found["comma"]:
                if not self._ends_clause(found):
                    continue
                if self._is_first and len(self._held[:end].strip()) >= FIRST_CLAUSE:
                    return end
                self._comma = end
            elif self._ends_sentence(found):
                return end
        self._looked = max(self._looked, self._settled())
        if self._is_first and self._is_late and (end := self._phrases()):
            return end
        return self._forced() if len(self._held) > LONGEST else 0

    def _phrases(self) -> int:
        """Where the last phrase begins of those that are held; 0 where there is but one."""
        begins = [found.end() for found in _PHRASE.finditer(self._held, 0, LONGEST) if not self._within_brackets(found.start())]
        return next((end for end in reversed(begins) if len(self._held[:end].strip()) >= FIRST_CLAUSE), 0)

    def _settled(self) -> int:
        """How far what is held looks the same whatever comes: a mark and what is behind it may yet grow."""
        return len(self._held.rstrip().rstrip(_CLOSERS).rstrip(".!?…,;:—–"))

    def _ends_clause(self, found: re.Match[str]) -> bool:
        mark, gap = found["comma"], found["gap"]
        return (bool(gap) or mark in "，；：、—") and not self._within_brackets(found.start())

    def _ends_sentence(self, found: re.Match[str]) -> bool:
        if not found["stop"]:
            return True
        if self._within_brackets(found.start()):
            return False
        if set(found["stop"]) != {"."}:
            return not found["next"].islower()
        return not found["next"].islower() and not (found["stop"] == "." and self._is_abbreviated(found.start()))

    def _is_abbreviated(self, stop: int) -> bool:
        """Whether the full stop there belongs to the word before it: an abbreviation, initials, or the number of a list's line."""
        word = _WORD_BEFORE.search(self._held, max(0, stop - 20), stop)
        if word is None:
            return False
        if word[1].isdecimal():
            return not self._held[self._held.rfind("\n", 0, stop) + 1 : word.start(1)].strip()
        return word[1].lower() in _ABBREVIATIONS or (_INITIALS.fullmatch(word[1]) is not None and word[1] != "I")

    def _within_brackets(self, end: int) -> bool:
        """Whether a link's text or its address, or code, is open there."""
        line = self._held[self._held.rfind("\n", 0, end) + 1 : end]
        return line.rfind("[") > line.rfind("]") or line.rfind("](") > line.rfind(")") or line.count("`") % 2 == 1

    def _forced(self) -> int:
        """Where a sentence is cut that is too long; words longer than that, such as addresses, are left whole a while."""
        if self._comma:
            return self._comma
        if spaces := list(_GAP.finditer(self._held, 0, LONGEST)):
            return spaces[-1].end()
        return LONGEST if len(self._held) > _HELD else 0


def sentences(text: str) -> list[str]:
    """A whole text, cut."""
    clauses = Clauses(soon=False)
    return clauses.take(text) + clauses.flush()
