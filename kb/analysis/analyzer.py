"""The lexical leg's analyser: what counts as the same word, and what never does."""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache

import snowballstemmer

from kb.analysis.stop_words import STOP_WORDS
from kb.types import Locale

_SNOWBALL: dict[Locale, str] = {"en": "english", "es-419": "spanish", "pt-BR": "portuguese"}

_UNITS = "mcg|µg|μg|ug|mg|kg|g|ml|dl|l|iu|meq|mmol|mm|cm|kcal|hours?|hrs?|h|min|days?|x|%"
_TOKEN = re.compile(
    # A number with a point or a comma stays whole whatever is glued to it; one without gives up a
    # unit only (25mg), since digits and letters also make codes (2c9).
    rf"(?<!\w)(?P<number>[.,]\d+(?:[.,]\d+)*|\d+(?:[.,]\d+)+|\d+(?=(?:{_UNITS})?(?!\w)))"
    # A word or a code, kept whole across inner hyphens and apostrophes.
    r"|(?P<word>\w+(?:[-']\w+|\.\d+)*)"
    r"|(?P<sign>%)"
)
# Scripts written without spaces: kana and Han, Thai, Lao, Khmer, Burmese; with their vowel marks.
_UNSPACED_CHARACTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_UNSPACED = re.compile(f"[{_UNSPACED_CHARACTERS}]+")
_INVISIBLE = re.compile("[\u2120\u2122\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_LOOSE_MARKS = re.compile("[\u0300-\u036f]")
_FRACTION = re.compile(r"(?<!\d)(\d*)([¼-¾⅐-⅞])")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹]+")
_ALIKE = str.maketrans({"’": "'", "\u2010": "-", "\u2011": "-"})

# 1,000 and 1.000: which of the two is a thousand is a matter of the locale. A group never follows a
# nought: 0,125 is an eighth everywhere.
_GROUPED_BY_COMMA = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_GROUPED_BY_POINT = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
_UNIT_NAMES = {"μg": "mcg", "µg": "mcg", "ug": "mcg"}
# Endings that Portuguese is often typed without accents in, and that its stemmer knows only with.
_PORTUGUESE_ENDINGS = {"cao": "ção", "coes": "ções", "encia": "ência", "encias": "ências"}

_stemmers_in_use = threading.Lock()


def analyze(text: str, locale: Locale) -> list[str]:
    """Give the tokens of a text, in order.

    Compatibility forms, case, accents (but not ``ñ``) and invisible characters are made equal;
    numbers stay values, so that 2.5 is never 25; words are stemmed before accents are folded,
    since the stemmer reads them; scripts without spaces become character pairs.

    >>> analyze("Take 2.5mg of Warfarin", "en")
    ['take', '2.5', 'mg', 'warfarin']
    """
    tokens: list[str] = []
    for match in _TOKEN.finditer(_one_form(text)):
        if number := match["number"]:
            tokens.append(_number(number, locale))
        elif match["sign"]:
            tokens.append(match["sign"])
        else:
            tokens.extend(_word(match["word"], locale))
    return tokens


def _one_form(text: str) -> str:
    """Write what means the same with the same characters."""
    text = _FRACTION.sub(_decimal_of_fraction, _INVISIBLE.sub("", text))
    text = _SUPERSCRIPT.sub(lambda match: f" {match[0]}", text)  # 10⁹ is not 109.
    text = unicodedata.normalize("NFKC", text).casefold()
    # Case folding can leave the composed form: compose again, or marks would split words.
    text = unicodedata.normalize("NFKC", text).translate(_ALIKE)
    return _LOOSE_MARKS.sub("", text)


def _decimal_of_fraction(match: re.Match[str]) -> str:
    """Write ``2½`` as 2.5, which the compatibility form would make 21 and 2."""
    whole, fraction = match.groups()
    return (whole or "0") + f"{unicodedata.numeric(fraction):.4f}".removeprefix("0")


def _number(digits: str, locale: Locale) -> str:
    """Write a number one way: ``1,000`` is 1000, ``2,5`` and ``2.50`` are 2.5, ``.5`` is 0.5.

    What is no plain number (``14.2.1.0``) is a code and stays as it is.
    """
    if locale == "pt-BR" and _GROUPED_BY_POINT.fullmatch(digits):
        digits = digits.replace(".", "").replace(",", ".")
    elif locale != "pt-BR" and _GROUPED_BY_COMMA.fullmatch(digits):
        digits = digits.replace(",", "")
    digits = digits.replace(",", ".")
    if digits.count(".") > 1:
        return digits
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def _word(word: str, locale: Locale) -> list[str]:
    if word in STOP_WORDS[locale]:
        return []
    if _UNSPACED.search(word):
        return _character_pairs(word)
    whole = _normal_form(_UNIT_NAMES.get(word, word), locale)
    if "-" not in word:
        return [whole]
    # A hyphenated code is findable whole and by part.
    parts = (part for part in word.split("-") if part not in STOP_WORDS[locale])
    return [whole, *(_normal_form(part, locale) for part in parts)]


def _character_pairs(word: str) -> list[str]:
    tokens: list[str] = []
    end = 0
    for run in _UNSPACED.finditer(word):
        tokens.extend(filter(None, (word[end : run.start()],)))
        text = run.group()
        tokens.extend(text[i : i + 2] for i in range(max(1, len(text) - 1)))
        end = run.end()
    tokens.extend(filter(None, (word[end:],)))
    return tokens


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
