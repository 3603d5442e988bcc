"""
Cuts a stream of text into clauses that can be spoken: a short first one, so that speech starts soon, then sentences.

No text is lost or changed: the clauses joined are the text. A clause ends behind white space, so that the next one
begins with a word. A model may write anything, so no text costs more than a few microseconds a character: the buffer is
never longer than `_MAX_BUFFER_CHARS`.
"""

import re
from collections.abc import Iterator

MIN_FIRST_CLAUSE_CHARS = 12
"""Minimum length of the first clause; a shorter one sounds chopped off and saves hardly any time."""

MIN_PHRASE_CHARS = 6
"""Minimum length of a phrase that somebody waits for, where the voice makes one sentence of its parts."""

MIN_WORDS, MIN_WORDS_CHARS = 2, 7
"""What is spoken alone where not even a phrase is complete: about half a second of speech."""

MAX_SENTENCE_CHARS = 240
"""A longer sentence is cut at its last comma, or else at its last word."""

_MAX_BUFFER_CHARS = 4 * MAX_SENTENCE_CHARS
"""A longer word, such as a URL, is cut; so no clause is longer."""

_ABBREVIATIONS = frozenset(
    (
        "mr mrs ms dr prof st sr jr vs etc e.g i.e cf al approx dept est fig no vol pp ed eds inc ltd co corp gen col sgt capt lt rev hon "
        "gov sen rep jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun a.m p.m u.s u.k ave blvd "
        "rd mt ft z.b d.h u.a bzw usw ca nr str bspw ggf evtl p.ej sra av"
    ).split()
)
"""
Words whose full stop doesn't end a sentence. Where it does after all, the sentence is spoken together with the next.
"""

_WORD_BEFORE = re.compile(r"([^\s(\[\"'“‘*_]+)$")
# English words that begin a phrase: a speaker may draw breath before them.
_PHRASE_START = re.compile(
    r"\s(?=(?:and|or|but|nor|yet|so|to|that|which|who|whose|where|when|while|because|since|if|unless|though|although|as|than|with|without|"
    r"for|from|of|in|into|on|onto|at|by|about|between|through|during|before|after|until|is|are|was|were|can|could|will|would|should)\s)"
)

# English words that nobody pauses behind: articles, prepositions, pronouns, auxiliaries.
_BINDING_WORDS = frozenset(
    (
        "a an the this that these those my your his her its our their some any no not very too to of in on at by for from with into and or "
        "but as so than if is are was were be been am i'm it's that's you're we're they're i you we they he she it there can could will "
        "would should may might must shall do does did has have had"
    ).split()
)
_GAP = re.compile(r"(?<!\s)\s++(?=\S)")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_INITIALS = re.compile(r"(?:[A-Za-zÀ-Þ]\.)*[A-Za-zÀ-Þ]")
_CLOSERS = "\"'”’)]*_»"

# Punctuation and closing quotes or brackets, then white space and the next character, which tells whether a sentence
# begins there. A run of marks matches from its first one only (the lookbehind): else a long run would take quadratic
# time.
_BREAK = re.compile(
    r"\n"
    rf"|(?<![.!?…])(?P<stop>[.!?…]++)[{re.escape(_CLOSERS)}]*[^\S\n]+(?=(?P<next>\S))"
    r"|(?P<wide>[。！？])[”』」）]*"
    r"|(?P<comma>[,;:—–]|[，；：、])(?P<gap>[^\S\n]+(?=\S)|)"
)


class ClauseSplitter:
    """
    Cuts the text of one answer as it arrives.

    Args:
        split_first_clause: whether the first clause may come before the first sentence is complete.
        joins_parts: whether the voice makes one sentence of its parts, so that they may be a few words long.
    """

    def __init__(self, *, split_first_clause: bool = True, joins_parts: bool = False) -> None:
        self._buffer = ""
        self._scan_from = 0  # there is no cut before this offset
        self._last_clause_end = 0  # offset in the buffer
        self._is_first = split_first_clause
        self._joins_parts = joins_parts
        self._min_phrase_chars = MIN_PHRASE_CHARS if joins_parts else MIN_FIRST_CLAUSE_CHARS
        self._is_late = False

    def feed(self, text: str, *, is_late: bool = False) -> list[str]:
        """
        Add text; returns the clauses that are now complete.

        Args:
            is_late: whether somebody waits for speech, so that the first clause may be a part of a sentence.
        """
        self._is_late = is_late
        return [clause for i in range(0, len(text) or 1, _MAX_BUFFER_CHARS) for clause in self._cut(text[i : i + _MAX_BUFFER_CHARS])]

    def flush(self) -> list[str]:
        """The rest of the text; nothing follows."""
        rest, self._buffer = self._buffer, ""
        self._scan_from = self._last_clause_end = 0
        return [rest] if rest else []

    def _cut(self, text: str) -> Iterator[str]:
        self._buffer += text
        while end := self._find_end():
            clause, self._buffer = self._buffer[:end], self._buffer[end:]
            self._scan_from = self._last_clause_end = 0
            self._is_first = self._is_first and not clause.strip()
            self._is_late = self._is_late and not clause.strip()
            yield clause

    def _find_end(self) -> int:
        """Where the first clause in the buffer ends; 0 if that isn't known yet."""
        for match in _BREAK.finditer(self._buffer, self._scan_from):
            end = match.end()
            if end > MAX_SENTENCE_CHARS:
                break
            if match["comma"]:
                if not self._ends_clause(match):
                    continue
                if self._is_late or self._is_first:
                    min_chars = self._min_phrase_chars if self._is_late else MIN_FIRST_CLAUSE_CHARS
                    if len(self._buffer[:end].strip()) >= min_chars:
                        return end
                self._last_clause_end = end
            elif self._ends_sentence(match):
                return end
        self._scan_from = max(self._scan_from, self._stable_length())
        if self._is_late and (end := self._phrase_end() or self._words_end()):
            return end
        return self._forced_end() if len(self._buffer) > MAX_SENTENCE_CHARS else 0

    def _phrase_end(self) -> int:
        """Where the last phrase in the buffer begins; 0 if there is only one."""
        starts = _PHRASE_START.finditer(self._buffer, 0, MAX_SENTENCE_CHARS)
        ends = [self._last_clause_end, *(match.end() for match in starts if not self._is_within_brackets(match.start()))]
        return next((end for end in sorted(ends, reverse=True) if len(self._buffer[:end].strip()) >= self._min_phrase_chars), 0)

    def _words_end(self) -> int:
        """Behind the last complete word in the buffer that one may pause at; 0 if there is none, or too few before it."""
        if not self._joins_parts:
            return 0
        for gap in reversed([*_GAP.finditer(self._buffer, 0, MAX_SENTENCE_CHARS)]):
            words = self._buffer[: gap.start()].split()
            if len(words) < MIN_WORDS or len(self._buffer[: gap.start()].strip()) < MIN_WORDS_CHARS:
                return 0
            # Numbers are read with the words behind them ("$5 million"), and markup is cut with the whole of it.
            if _WORD.fullmatch(words[-1]) and words[-1].lower() not in _BINDING_WORDS and not self._is_within_brackets(gap.start()):
                return gap.end()
        return 0

    def _stable_length(self) -> int:
        """How much of the buffer more text can't change: punctuation at its end may still continue."""
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
        """
        Whether the full stop belongs to the word before it: an abbreviation, initials, or the number of a list item.
        """
        word = _WORD_BEFORE.search(self._buffer, max(0, stop - 20), stop)
        if word is None:
            return False
        if word[1].isdecimal():
            return not self._buffer[self._buffer.rfind("\n", 0, stop) + 1 : word.start(1)].strip()
        return word[1].lower() in _ABBREVIATIONS or (_INITIALS.fullmatch(word[1]) is not None and word[1] != "I")

    def _is_within_brackets(self, end: int) -> bool:
        """Whether a link's text, its address or inline code is open at `end`."""
        line = self._buffer[self._buffer.rfind("\n", 0, end) + 1 : end]
        return line.rfind("[") > line.rfind("]") or line.rfind("](") > line.rfind(")") or line.count("`") % 2 == 1

    def _forced_end(self) -> int:
        """Where to cut a sentence that is too long; 0 while its one word, such as a URL, may still end."""
        if self._last_clause_end:
            return self._last_clause_end
        if spaces := list(_GAP.finditer(self._buffer, 0, MAX_SENTENCE_CHARS)):
            return spaces[-1].end()
        return MAX_SENTENCE_CHARS if len(self._buffer) > _MAX_BUFFER_CHARS else 0


def ends_melody(clause: str) -> bool:
    """
    Whether what follows this clause of `ClauseSplitter.feed` is spoken as if it began anew: after a sentence, a line, a
    colon, a semicolon or a dash. Joined to what stands before a colon, the next word was heard wrong in a third of cases.
    """
    return clause.endswith("\n") or clause.rstrip().rstrip(_CLOSERS + "”』」）")[-1:] in tuple(".!?…。！？:;—–：；")


def split_sentences(text: str) -> list[str]:
    """The sentences of a whole text; joined they are the text."""
    splitter = ClauseSplitter(split_first_clause=False)
    return splitter.feed(text) + splitter.flush()
