"""
What the end of a transcript says about how complete a turn is.

It only makes a turn less likely to be complete. Of 38 whole utterances Moonshine ended 7 in a comma or without a mark,
and of 19 that were cut off it ended 7 so; it sets a full stop also behind "I need a table for". So a mark is a weak
cue, and a word that nobody stops after a strong one.
"""

import re

MARK_LIMIT = 0.74
"""How likely a turn is complete, at most, whose transcript ends in a comma or without a mark."""

WORD_LIMIT = 0.5
"""The same of one that ends in a word that something follows."""

_END_MARKS = (".", "!", "?", "。", "！", "？", "।", "؟")
_CLOSERS = "\"'”’»)]"
_TRAILING_OFF = re.compile(r"(?:\.\.+|…)$")
_LAST_WORDS = re.compile(r"(?:(\w+)\W+)?([\w'’]+)\W*$")

# Particles of verbs are left out, as a command may end in one: "turn it on", "come in".
_ENGLISH_WORDS = frozenset(
    (
        "a an the and or but nor because if unless until although whereas whether than "
        "of to for with from into onto at by during between among toward towards upon via per "
        "my your our their every"
    ).split()
)
_ENGLISH_DEGREES = frozenset("more most less very rather quite too so".split())
_ARTICLES = frozenset(("a", "an"))


def ends_in_mark(text: str) -> bool:
    """Whether the text ends as a sentence does."""
    text = text.rstrip().rstrip(_CLOSERS)
    return text.endswith(_END_MARKS) and not _TRAILING_OFF.search(text)


def likelihood_limit(text: str, language: str | None = None, *, has_end_marks: bool) -> float:
    """
    How likely the turn is complete, at most: 1 if nothing speaks against it.

    Args:
        text: of the turn so far.
        language: its code; the words are looked at in English, and where it is not known.
        has_end_marks: whether the transcriber sets marks at the end of a sentence; else none is missed.
    """
    if not text.strip():
        return 1.0
    if language in (None, "en") and _ends_in_open_word(text):
        return WORD_LIMIT
    is_open = has_end_marks or text.rstrip()[-1] in ",、，،;:-–—" or _TRAILING_OFF.search(text.rstrip())
    return MARK_LIMIT if is_open and not ends_in_mark(text) else 1.0


def _ends_in_open_word(text: str) -> bool:
    match = _LAST_WORDS.search(text.lower())
    if match is None:
        return False
    before, last = match.groups()
    if last in _ENGLISH_DEGREES:
        return before in _ARTICLES
    # A question may end in a preposition: "Where are you from?"
    return last in _ENGLISH_WORDS and not text.rstrip().endswith("?")
