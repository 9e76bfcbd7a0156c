"""Compares column names as Spark does, which ignores their case. Pure."""

from __future__ import annotations

import functools
import re

_SIGMA = "\N{GREEK CAPITAL LETTER SIGMA}"
_FINAL_SIGMA = "\N{GREEK SMALL LETTER FINAL SIGMA}"
_WORD = re.compile(r"\w+(?:[-.']\w+)*")


@functools.lru_cache(maxsize=16_384)
def fold_name(name: str) -> str:
    """Return the name in Java's lower case; names with the same result are the same to Spark.

    Case folding would also join names that are different to Spark, such as `straße` and `strasse`.
    Python's lower case differs from Java's in one letter: where Java sees the end of a word.
    """
    return _WORD.sub(_lower_word, name).lower() if _SIGMA in name else name.lower()


def _lower_word(match: re.Match[str]) -> str:
    """Return a word with its capital sigmas in lower case: final after a letter and before none."""
    word = match[0]
    cased = [place for place, letter in enumerate(word) if letter.lower() != letter.upper()]
    last = cased[-1]
    is_final = len(cased) > 1 and word[last] == _SIGMA
    lower = word.replace(_SIGMA, "\N{GREEK SMALL LETTER SIGMA}")
    return f"{lower[:last]}{_FINAL_SIGMA}{lower[last + 1 :]}" if is_final else lower
