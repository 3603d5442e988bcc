"""
The tokenizer of BERT and its descendants: words, and pieces of words that are not in the vocabulary.

After the original's `tokenization.py` (google-research/bert), in the order in which the library `tokenizers` does it.
Texts are data: what looks like a special token, such as `[SEP]`, is text like any other.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_CHARS = 65_536
"""The most of a text that is read: 256 tokens are about 1,200 characters of English."""

MAX_WORD_CHARS = 100
"""A longer word is unknown, as in the original."""

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class _CleanTable(dict[int, str]):
    """Per code point what stands in its place: nothing for controls, spaces around an ideograph. Filled as it is used."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if char in "\t\n\r" or unicodedata.category(char) == "Zs":
            result = " "
        elif char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf", "Co"):
            result = ""
        else:
            result = f" {char} " if any(first <= code <= last for first, last in _IDEOGRAPHS) else char
        self[code] = result
        return result


class _WordTable(dict[int, str]):
    """Per code point of a decomposed text: nothing for an accent, spaces around punctuation. Filled as it is used."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if category == "Mn":
            result = ""
        else:
            # All of ASCII that is no letter, digit or space counts as punctuation, `$` and `+` as well.
            is_punctuation = category[0] == "P" or (0x21 <= code < 0x7F and not char.isalnum())
            result = f" {char} " if is_punctuation else char
        self[code] = result
        return result


class WordPiece:
    """
    An uncased tokenizer.

    Args:
        vocabulary: the id of each piece; a piece that continues a word begins with `##`.
    """

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._ids = dict(vocabulary)
        self._unknown, self._first, self._last = (self._ids[name] for name in ("[UNK]", "[CLS]", "[SEP]"))
        self._clean_table = _CleanTable()
        self._word_table = _WordTable()

    @classmethod
    def from_file(cls, path: Path) -> "WordPiece":
        """
        The tokenizer in a `tokenizer.json`.

        Raises:
            OSError, ValueError, KeyError, TypeError: it can't be read, or is none of an uncased BERT.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        # Another tokenizer would give vectors without any sense, and no error.
        if content["model"]["type"] != "WordPiece" or not content["normalizer"]["lowercase"]:
            raise ValueError("the tokenizer is no uncased WordPiece")
        return cls(content["model"]["vocab"])

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """The ids of a text's tokens, the first and the last one of every text included; the end is cut off."""
        ids = [self._first]
        for word in self._words(text[:MAX_CHARS]):
            ids.extend(self._pieces(word))
            if len(ids) >= max_tokens:
                break
        return [*ids[: max_tokens - 1], self._last]

    def _words(self, text: str) -> Iterator[str]:
        letters_and_accents = unicodedata.normalize("NFD", text.translate(self._clean_table))
        return iter(letters_and_accents.translate(self._word_table).lower().split())

    def _pieces(self, word: str) -> list[int]:
        """The longest piece that the word begins with, then the longest that the rest continues with, and so on."""
        if len(word) > MAX_WORD_CHARS:
            return [self._unknown]
        pieces: list[int] = []
        begin = 0
        while begin < len(word):
            prefix = "##" if begin else ""
            for end in range(len(word), begin, -1):
                if (piece := self._ids.get(prefix + word[begin:end])) is not None:
                    break
            else:
                return [self._unknown]
            pieces.append(piece)
            begin = end
        return pieces
