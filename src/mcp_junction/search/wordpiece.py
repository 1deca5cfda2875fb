"""WordPiece: splits texts into the pieces of BERT's uncased vocabulary, in pure Python.

It gives the same pieces as the reference tokenizer. What it does not do: truncate, pad, or add the
tokens that mark the beginning and the end of a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Final

UNKNOWN: Final = 100
"""The piece that stands for a word that cannot be split into known pieces."""
_LONGEST: Final = 100
"""Characters of the longest word that is looked at."""
_ASCII: Final = re.compile(r"[a-z0-9]+|[^a-z0-9\s\x00-\x1f\x7f]")
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@cache
def vocabulary() -> list[str]:
    """Read the pieces; the number of a piece is its place in the list."""
    file = resources.files("mcp_junction.search").joinpath("data", "vocabulary.txt")
    return file.read_text("utf-8").splitlines()


class WordPiece:
    """Turns texts into numbers of pieces."""

    def __init__(self) -> None:
        self._numbers: Mapping[str, int] = {piece: n for n, piece in enumerate(vocabulary())}
        self._split = lru_cache(1 << 15)(self._split_word)

    def __call__(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces, in order."""
        found: list[int] = []
        for word in split_words(text):
            found += self._split(word)
        return found

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Split a word, each time at the end of the longest piece that it begins with."""
        found: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST:
            number, start = self._longest_piece(word, start)
            if number is None:
                return (UNKNOWN,)
            found.append(number)
        return tuple(found) or (UNKNOWN,)

    def _longest_piece(self, word: str, start: int) -> tuple[int | None, int]:
        mark = "##" if start else ""
        for end in range(len(word), start, -1):
            number = self._numbers.get(mark + word[start:end])
            if number is not None:
                return number, end
        return None, start


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words without accents; each mark and ideograph stands alone."""
    text = text.lower()
    if text.isascii():
        return _ASCII.findall(text)
    return "".join(_separate(unicodedata.normalize("NFD", text))).split()


def _separate(text: str) -> Iterator[str]:
    """Yield the characters of a text, with spaces around those that stand alone."""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            yield " "
        elif category == "Mn" or category[0] == "C" or char == "\ufffd":
            continue
        elif _stands_alone(char, category):
            yield f" {char} "
        else:
            yield char


def _stands_alone(char: str, category: str) -> bool:
    if char.isascii():
        return not char.isalnum()
    return category[0] == "P" or any(low <= ord(char) <= high for low, high in _IDEOGRAPHS)
