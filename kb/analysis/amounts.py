"""Read numbers as values, so that 2.5 is never 25. Pure."""

from __future__ import annotations

import re
from itertools import chain

from kb.types import Locale

_SPELLINGS = {
    "mg": """mgs milligram milligrams milligramme milligrammes miligramo miligramos miligrama
        miligramas""",
    "mcg": "μg µg ug mcgs microgram micrograms microgramo microgramos micrograma microgramas",
    "g": "gm gms gram grams gramo gramos grama gramas",  # Never gr: a grain is 65 mg.
    "kg": "kgs kilogram kilograms kilogramo kilogramos quilograma quilogramas",
    "ml": "mls milliliter milliliters millilitre millilitres mililitro mililitros",
    "h": "hr hrs hs hour hours hora horas",
    "min": "mins minute minutes minuto minutos",
}
UNIT_NAMES = {spelling: unit for unit, names in _SPELLINGS.items() for spelling in names.split()}

_SHORT_UNITS = """ng l dl iu ui u meq mmol mm mmhg cm cc cal kcal lb lbs oz x sec secs day days día
    días dia dias week weeks semana semanas month months mes meses mês year years yr yrs año años
    ano anos tab tabs cap caps pill pills tsp tbsp gtt"""
UNITS = tuple(sorted({*_SPELLINGS, *UNIT_NAMES, *_SHORT_UNITS.split()}, key=lambda u: (-len(u), u)))

UNIT = "(?:" + "|".join(map(re.escape, UNITS)) + r")(?!\w)"
# A longer word behind a number is no part of a code (2tablets), but for the letters of chemistry.
_GLUED = rf"(?:{UNIT}|(?!alpha|beta|gamma|delta)[^\W\d_]{{4,}}(?!\w)|(?!\w))"
# A number with a point or a comma stays whole whatever is glued to it; one without gives up a unit
# or a word only, since digits and letters also make codes (2c9, 5-fu).
_ELEMENT = (
    r"(?:[.,]\d++(?:[.,]\d++)*+|\d++(?:[.,]\d++)++"
    rf"|\d++(?={_GLUED})(?!-(?!{UNIT})[^\W\d_]))"
)
AMOUNT = rf"(?<!\w){_ELEMENT}(?:[/:]{_ELEMENT})*"
DIGIT_CODE = r"(?<![\w-])\d++(?:-\d++){2,}+(?![\w-]|[.,]\d)"

# 1,000 and 1.000: which of the two is a thousand is a matter of the locale. A group never follows a
# nought: 0,125 is an eighth everywhere.
_GROUPED_BY_COMMA = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_GROUPED_BY_POINT = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
_GROUPED_PERHAPS = re.compile(r"[1-9]\d{0,2}\.\d{3}")


def amount_tokens(written: str, locale: Locale) -> list[str]:
    """Give the tokens of what ``AMOUNT`` matches.

    A number is its value. ``120/80`` is findable whole and by part; what has more parts (a date)
    is a code. ``1:1000`` and ``8:30`` are findable whole only, since their parts are no amounts;
    ``8:00`` is 8.
    """
    if ":" in written:
        return [_clock_or_ratio(written, locale)]
    parts = written.split("/")
    if len(parts) == 1:
        return [number_value(written, locale)]
    if len(parts) > 2:  # noqa: PLR2004  # A ratio has two.
        return [written, *parts]
    values = [number_value(part, locale) for part in parts]
    return ["/".join(values), *values]


def digit_code_tokens(written: str) -> list[str]:
    """Give a code of digits (0006-0749-31) whole and by part; leading noughts belong to it."""
    return [written, *written.split("-")]


def number_value(digits: str, locale: Locale) -> str:
    """Write a number one way: ``1,000`` is 1000, ``2,5`` and ``2.50`` are 2.5, ``.5`` is 0.5.

    What cannot be read stays as it is and equals itself only: what is no plain number
    (``14.2.1.0``), and ``1.500`` in Spanish, which is 1.5 in Mexico and 1500 in Argentina; in
    English too, since that is the locale of a query whose language is not sure.
    """
    if locale != "pt-BR" and _GROUPED_PERHAPS.fullmatch(digits):
        return digits
    by_comma, by_point = _GROUPED_BY_COMMA.fullmatch(digits), _GROUPED_BY_POINT.fullmatch(digits)
    if by_point and (locale == "pt-BR" or "," in digits or locale == "es-419"):
        digits = digits.replace(".", "").replace(",", ".")
    elif by_comma and (locale != "pt-BR" or "." in digits):
        digits = digits.replace(",", "")
    digits = digits.replace(",", ".")
    if digits.count(".") > 1:
        return digits
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def _clock_or_ratio(written: str, locale: Locale) -> str:
    if "/" in written:
        return written
    first, *rest = written.split(":")
    if rest == ["00"]:
        return number_value(first, locale)
    # The minutes of 8:05 keep their nought.
    others = (part if part[0] == "0" else number_value(part, locale) for part in rest)
    return ":".join(chain([number_value(first, locale)], others))
