"""The lexical leg's analyser: what counts as the same word, and what never does."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import snowballstemmer

from kb.analysis.amounts import (
    AMOUNT,
    DIGIT_CODE,
    UNIT_NAMES,
    amount_tokens,
    digit_code_tokens,
)
from kb.analysis.forms import UNSPACED, one_form
from kb.analysis.stop_words import STOP_WORDS
from kb.types import Locale

_SNOWBALL: dict[Locale, str] = {"en": "english", "es-419": "spanish", "pt-BR": "portuguese"}

_TOKEN = re.compile(
    r"(?P<clock>(?<!\w)[ap]\.m\.)"
    rf"|(?P<digit_code>{DIGIT_CODE})"
    rf"|(?P<amount>{AMOUNT})"
    # A word or a code, kept whole across inner hyphens and apostrophes.
    r"|(?P<word>\w+(?:[-']\w+|\.\d+)*)"
    r"|(?P<sign>%)"
)
# Endings that Portuguese is often typed without accents in, and that its stemmer knows only with.
_PORTUGUESE_ENDINGS = {"cao": "ção", "coes": "ções", "encia": "ência", "encias": "ências"}

_stemmers_in_use = threading.Lock()


def analyze(text: str, locale: Locale, *, stop_words: bool = True) -> list[str]:
    """Give the tokens of a text, in order.

    Compatibility forms, case, accents (but not ``ñ``) and invisible characters are made equal.
    Words are stemmed before accents are folded, since the stemmer reads them; scripts without
    spaces become character pairs.

    Numbers stay values, so that 2.5 is never 25, and a unit is a token of its own, with a space
    before it or without: ``2.5mg``, ``2,5 milligrams`` and ``2.50 mg`` are alike. ``1/2`` and ``½``
    are 0.5, ``1 1/2`` is 1.5. A range is its two ends; ``120/80`` is found whole and by part;
    ``1:1000`` and ``8:30`` whole; ``8am`` is 8 and a.m.; ``2x`` and ``x2`` are 2 and x. Codes are
    found whole and by part, and without their hyphen too (``b-12``, ``b12``).

    >>> analyze("Take 2.5mg of Warfarin", "en")
    ['take', '2.5', 'mg', 'warfarin']

    Args:
        text: any text.
        locale: says how words are stemmed and numbers are written.
        stop_words: drop function words.
    """
    dropped = STOP_WORDS[locale] if stop_words else frozenset[str]()
    return list(_tokens(one_form(text), locale, dropped))


def _tokens(text: str, locale: Locale, dropped: frozenset[str]) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        if amount := match["amount"]:
            yield from amount_tokens(amount, locale)
        elif code := match["digit_code"]:
            yield from digit_code_tokens(code)
        elif word := match["word"]:
            yield from _word(word, locale, dropped)
        else:
            yield match[0]


def _word(word: str, locale: Locale, dropped: frozenset[str]) -> Iterator[str]:
    if word in dropped:
        return
    if UNSPACED.match(word):
        yield from _character_pairs(word)
        return
    yield _normal_form(UNIT_NAMES.get(word, word), locale)
    if "-" not in word:
        return
    # A hyphenated code is findable whole, by part, and (covid-19) without its hyphen.
    if not word[0].isdigit() and any(map(str.isdigit, word)):
        yield _normal_form(word.replace("-", ""), locale)
    for part in word.split("-"):
        if part[0].isdigit():
            yield from _tokens(part, locale, dropped)
        elif part not in dropped:
            yield _normal_form(UNIT_NAMES.get(part, part), locale)


def _character_pairs(text: str) -> Iterator[str]:
    return (text[i : i + 2] for i in range(max(1, len(text) - 1)))


@lru_cache(maxsize=50_000)
def _normal_form(word: str, locale: Locale) -> str:
    # A code (a1c, b12) has no grammar to strip.
    return fold_accents(word if any(map(str.isdigit, word)) else _stem(word, locale))


def _stem(word: str, locale: Locale) -> str:
    if locale == "pt-BR":
        for bare, accented in _PORTUGUESE_ENDINGS.items():
            if word.endswith(bare):
                word = word.removesuffix(bare) + accented
    with _stemmers_in_use:  # Snowball's stemmers keep the word in themselves while they work.
        return str(_stemmer(locale).stemWord(word))


@lru_cache(maxsize=len(_SNOWBALL))
def _stemmer(locale: Locale) -> snowballstemmer.stemmer:
    return snowballstemmer.stemmer(_SNOWBALL[locale])


def fold_accents(word: str) -> str:
    """Drop accents, except the tilde of ``ñ``, which makes another letter.

    >>> fold_accents("medicación para el niño")
    'medicacion para el niño'
    """
    decomposed = unicodedata.normalize("NFD", word.replace("ñ", "\x00"))
    bare = "".join(char for char in decomposed if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", bare.replace("\x00", "ñ"))
