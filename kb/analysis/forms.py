"""Write what means the same with the same characters, before it is cut into tokens. Pure."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from kb.analysis.amounts import UNIT

# Scripts written without spaces: kana and Han, Thai, Lao, Khmer, Burmese; with their vowel marks.
_UNSPACED_CHARACTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
UNSPACED = re.compile(f"[{_UNSPACED_CHARACTERS}]+")

_INVISIBLE = re.compile("[\u2120\u2122\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_LOOSE_MARKS = re.compile("[\u0300-\u036f]")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹]+")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_ALIKE = str.maketrans(
    {
        "’": "'",
        "\u2010": "-",
        "\u2011": "-",
        "×": "x",
        "\u2044": "/",
        "\u2215": "/",
        "\u2236": ":",
        "\u066b": ".",
        "\u066c": ",",
    }
)

_FRACTION_SIGN = re.compile(r"(?<!\d)(\d*)([¼-¾⅐-⅞])")
_FRACTIONS = frozenset(
    Fraction(unicodedata.numeric(sign)).limit_denominator(10) for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
)
# The whole number has two digits at most: "losartan 100 1/2 tablet" is no amount of 100.5.
_TYPED_FRACTION = re.compile(
    r"(?<![\w.,/:])(?:([1-9]\d?)(?: (?:and|y|e) |[ -]))?(\d)/(\d{1,2})(?!\d|[/:.,]\d)"
)
_SPACED_GROUPS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?: \d{3})+(?!\d)")

_RANGE_OF_UNITS = re.compile(rf"(?<=\d)( ?{UNIT})-(?=[.,]?\d)")
_NUMBER = r"[.,]?\d++(?:[.,]\d++)*+"
# The text has single spaces when these are applied, in this order.
_REWRITES = (
    (_RANGE_OF_UNITS, r"\1 "),
    (re.compile(r"(?<=\d)[·∙⋅](?=\d)"), "."),
    (re.compile(r"(?<=\d) ?/ ?(?=\d)"), "/"),
    (re.compile(r"(?<=\d) : (?=\d)"), ":"),
    (re.compile(r"(?<=\d) ?(?:per ?cent|por ?ciento|por ?cento)(?!\w)"), "%"),
    (re.compile(r"(?<!\w)(\d{1,2})h([0-5]\d)(?:min)?(?!\w)"), r"\1:\2"),
    (re.compile(r"(?<=\d) ?([ap])m(?!\w)"), r" \1.m. "),
    (re.compile(r"(?:(?<=\d)|(?<!\w))([ap])\. ?m(?!\w)\.?"), r" \1.m. "),
    (re.compile(rf"(?<![\w.,])({_NUMBER}) ?x ?(?=[.,]?\d)"), r"\1 x "),
    (re.compile(r"(?<!\w)x(?=[.,]?\d++(?:[.,]\d++)*+(?:[^\W\d_]{1,4})?(?!\w))"), "x "),
)


def one_form(text: str) -> str:
    """Make compatibility forms, case, digits of other scripts and invisible characters equal.

    Amounts too: ``½``, ``1/2`` and ``1 / 2`` become 0.5000; ``2½``, ``2 1/2``, ``2-1/2`` and
    ``2 and 1/2`` become 2.5000; ``2·5`` is 2.5; ``2x500`` is 2 x 500; ``5mg-10mg`` is 5mg 10mg;
    ``8am``, ``8 a. m.`` and ``8 A.M.`` are 8 a.m.; ``20h30`` is 20:30; ``80 por ciento`` is 80%. A
    fraction is one that Unicode has a sign for; others (120/80, 24/7) are ratios.
    """
    text = _FRACTION_SIGN.sub(_spell_fraction_sign, _INVISIBLE.sub("", text))
    text = _SUPERSCRIPT.sub(r" \g<0>", text)  # 10⁹ is not 109.
    text = unicodedata.normalize("NFKC", text).casefold()
    # Case folding can leave the composed form: compose again, or marks would split words.
    text = unicodedata.normalize("NFKC", text).translate(_ALIKE)
    text = _LOOSE_MARKS.sub("", text)
    text = _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)
    text = " ".join(UNSPACED.sub(r" \g<0> ", text).split())
    for pattern, written in _REWRITES[:4]:
        text = pattern.sub(written, text)
    text = _SPACED_GROUPS.sub(_join_groups, text)
    text = _TYPED_FRACTION.sub(_decimal_of_typed_fraction, text)
    for pattern, written in _REWRITES[4:]:
        text = pattern.sub(written, text)
    return text


def _spell_fraction_sign(match: re.Match[str]) -> str:
    """Write ``2½`` as 2.5000, which the compatibility form would make 21/2."""
    whole, sign = match.groups()
    fraction = Fraction(unicodedata.numeric(sign)).limit_denominator(10)
    return _decimal(whole, fraction) if whole else f"{fraction.numerator}/{fraction.denominator}"


def _decimal_of_typed_fraction(match: re.Match[str]) -> str:
    whole, above, below = match.groups()
    if not int(below):
        return match[0]
    fraction = Fraction(int(above), int(below))
    reduced = (fraction.numerator, fraction.denominator) == (int(above), int(below))
    return _decimal(whole or "0", fraction) if reduced and fraction in _FRACTIONS else match[0]


def _decimal(whole: str, fraction: Fraction) -> str:
    """Give four decimals: three could be read as a group of thousands."""
    return whole + f"{float(fraction):.4f}".removeprefix("0")


def _join_groups(match: re.Match[str]) -> str:
    """Join ``10 000``. "2 500 mg" stays two amounts: it may be two tablets of 500 mg; but no
    amount begins with a nought.
    """
    _, *groups = match[0].split(" ")
    return match[0].replace(" ", "") if any(group[0] == "0" for group in groups) else match[0]
