"""The analyser of published BM25 baselines: what Lucene's ``EnglishAnalyzer`` does to a text.

Word tokens (Unicode word boundaries), possessive 's removed, lower case, 33 stop words, Porter's
stemmer. It anchors our measurements to published ones; it is for English and reads 2.5 and 25 as
unlike words, but knows nothing else of doses.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache

import snowballstemmer

STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then
    there these they this to was will with""".split()
)

_MARKED = r"[\w\u0300-\u036f]+"
_LETTER_JOINT = r"(?<=[^\W\d_])[.:'’·](?=[^\W\d_])"
_DIGIT_JOINT = r"(?<=\d)[.,;'’](?=\d)"
_WORD = re.compile(rf"{_MARKED}(?:(?:{_LETTER_JOINT}|{_DIGIT_JOINT}){_MARKED})*")
_POSSESSIVE = ("'s", "’s")
_SHORTEST_STEMMED = 3

# A vowel and a consonant behind it: the stem has a measure above 0 in Porter's terms.
_MEASURED = re.compile(r"[^aeiou]?[^aeiouy]*[aeiouy][aeiou]*[^aeiou]")

_stemmer_in_use = threading.Lock()


def analyze_published(text: str) -> list[str]:
    """Give the tokens of a text as the published baselines had them.

    >>> analyze_published("The patients' dose isn't Crohn's 2.5 mg")
    ['patient', 'dose', "isn't", 'crohn', '2.5', 'mg']
    """
    words = (match[0] for match in _WORD.finditer(text) if any(map(str.isalnum, match[0])))
    lowered = (_without_possessive(word).lower() for word in words)
    return [_stem(word) for word in lowered if word not in STOP_WORDS]


def _without_possessive(word: str) -> str:
    return word[:-2] if word[-2:].lower() in _POSSESSIVE else word


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    if len(word) < _SHORTEST_STEMMED:
        return word
    with _stemmer_in_use:  # Snowball's stemmers keep the word in themselves while they work.
        return str(_porter().stemWord(_as_its_author_changed_it(word)))


def _as_its_author_changed_it(word: str) -> str:
    """Apply the two rules that Lucene's stemmer has from Porter's own program, not his paper."""
    for ending, wanted in (("bly", "ble"), ("logy", "log"), ("logies", "log")):
        if word.endswith(ending) and not word.endswith("ably"):
            stem = word.removesuffix(ending)
            return stem + wanted if _MEASURED.match(stem) else word
    return word


@lru_cache(maxsize=1)
def _porter() -> snowballstemmer.stemmer:
    return snowballstemmer.stemmer("porter")
