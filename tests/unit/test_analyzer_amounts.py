"""Amounts, as patients, labels and cards write them: a wrong dose found is worse than none."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kb.analysis.amounts import UNITS
from kb.analysis.analyzer import analyze
from kb.types import Locale

LOCALES: tuple[Locale, ...] = get_args(Locale)

_locales = st.sampled_from(LOCALES)
# Two decimals: three behind a whole number can be thousands.
_amounts = st.decimals(min_value="0.01", max_value="9999", places=2)
_units = st.sampled_from(UNITS)
_property = settings(deadline=None, derandomize=True, max_examples=150)


def numbers(text: str, locale: Locale) -> set[str]:
    return {token for token in analyze(text, locale) if token[0].isdigit()}


# Fractions.


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1/2 mg", "0.5"),
        ("1 / 2 mg", "0.5"),
        ("1\u20442 mg", "0.5"),
        ("½ mg", "0.5"),
        ("½mg", "0.5"),
        ("1/2mg", "0.5"),
        ("1/4 mg", "0.25"),
        ("3/4 mg", "0.75"),
        ("1/8 mg", "0.125"),
        ("1/3 mg", "0.3333"),
        ("⅓ mg", "0.3333"),
        ("1 1/2 mg", "1.5"),
        ("1-1/2 mg", "1.5"),
        ("1½ mg", "1.5"),
        ("1 ½ mg", "1.5"),
        ("1 and 1/2 mg", "1.5"),
        ("1 y 1/2 mg", "1.5"),
        ("1 e 1/2 mg", "1.5"),
        ("2⅛ mg", "2.125"),
        ("100½ mg", "100.5"),
    ],
)
def test_a_fraction_is_its_value(text: str, amount: str, locale: Locale) -> None:
    assert analyze(text, locale) == [amount, "mg"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1/2-1 mg", ["0.5", "1", "mg"]),
        ("1-2 1/2 mg", ["1", "2.5", "mg"]),
        ("losartan 100 1/2 tablet", ["losartan", "100", "0.5", "tablet"]),
        ("2.5 1/2", ["2.5", "0.5"]),
        ("5 mg 1/2 tablet", ["5", "mg", "0.5", "tablet"]),
        ("1/2/day", ["0.5", "day"]),
        ("1/0", ["1/0", "1", "0"]),
        ("2/4", ["2/4", "2", "4"]),
    ],
)
def test_a_fraction_takes_only_the_whole_number_that_is_its_own(
    text: str, tokens: list[str]
) -> None:
    assert analyze(text, "en") == tokens


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1/2 tablet", "12 tablets"),
        ("1/2 tablet", "1 tablet"),
        ("1/2 tablet", "2 tablets"),
        ("1 1/2 tablets", "11 or 2 or 12 or 112"),
        ("2½", "21 or 2 or 212"),
        ("2.5 mg", "25 mg"),
        ("2·5 mg", "25 mg, 2 mg, 5 mg"),
        ("2٫5 mg", "25 mg, 2 mg, 5 mg"),
        ("0.125 mg", "125 mg"),
        ("0,125 mg", "125 mg"),
        (".5 mg", "5 mg"),
        ("1:1000", "1000 mg, 1 mg"),
        ("1:1000", "1:10000"),
        ("10 000 IU", "10 IU, 0 IU, 1000 IU"),
        ("8:30", "8 mg, 30 mg, 830 mg"),
        ("20h30", "20 mg, 30 mg, 2030 mg"),
        ("10⁹", "109"),
        ("1.500 mg", "15 mg, 1 mg, 500 mg"),
    ],
)
def test_amounts_that_differ_share_no_number(one: str, other: str, locale: Locale) -> None:
    assert numbers(one, locale)
    assert numbers(one, locale).isdisjoint(numbers(other, locale))


# Separators.


@pytest.mark.parametrize(
    ("text", "locale", "tokens"),
    [
        ("10 000 IU", "en", ["10000", "iu"]),
        ("10\u00a0000 UI", "es-419", ["10000", "ui"]),
        ("1 500 000", "en", ["1500000"]),
        ("2 500 mg", "en", ["2", "500", "mg"]),
        ("1,000mg", "en", ["1000", "mg"]),
        ("1,000tablets", "en", ["1000", "tablet"]),
        ("1.000mg", "pt-BR", ["1000", "mg"]),
        ("1,500 mg", "pt-BR", ["1.5", "mg"]),
        ("1,500 mg", "es-419", ["1500", "mg"]),
        ("1.500 mg", "es-419", ["1.500", "mg"]),
        ("1.234.567", "es-419", ["1234567"]),
        ("1.234,5 mg", "en", ["1234.5", "mg"]),
        ("1,234.5 mg", "pt-BR", ["1234.5", "mg"]),
        ("2·5 mg", "en", ["2.5", "mg"]),
        ("٢٫٥ mg", "en", ["2.5", "mg"]),
        ("२.५ mg", "en", ["2.5", "mg"]),
    ],
)
def test_separators_are_read_as_the_locale_writes_them(
    text: str, locale: Locale, tokens: list[str]
) -> None:
    assert analyze(text, locale) == tokens


@pytest.mark.parametrize("locale", ["en", "es-419"])
@pytest.mark.parametrize("text", ["1.500 mg", "1.500mg", "dose: 1.500."])
def test_a_point_before_three_digits_is_neither_reading(text: str, locale: Locale) -> None:
    assert numbers(text, locale) == {"1.500"}
    assert numbers(text, locale).isdisjoint(numbers("1.5 mg or 1500 mg or 1,500 mg", locale))


# Ranges and ratios.


@pytest.mark.parametrize(
    ("text", "locale"),
    [
        ("5-10 mg", "en"),
        ("5\u201310 mg", "en"),
        ("5 - 10mg", "en"),
        ("5 to 10 mg", "en"),
        ("5 a 10 mg", "es-419"),
        ("de 5 a 10 mg", "es-419"),
        ("entre 5 y 10 mg", "es-419"),
        ("de 5 a 10 mg", "pt-BR"),
    ],
)
def test_a_range_is_its_two_ends_and_the_unit(text: str, locale: Locale) -> None:
    assert analyze(text, locale) == ["5", "10", "mg"]


@pytest.mark.parametrize("text", ["5mg-10mg", "5 mg-10 mg", "5mg\u201310mg", "5 mg to 10 mg"])
def test_a_range_may_have_its_unit_twice(text: str) -> None:
    assert analyze(text, "en") == ["5", "mg", "10", "mg"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("120/80", ["120/80", "120", "80"]),
        ("120 / 80 mmHg", ["120/80", "120", "80", "mmhg"]),
        ("24/7", ["24/7", "24", "7"]),
        ("5/325mg", ["5/325", "5", "325", "mg"]),
        ("2.50/10 mg", ["2.5/10", "2.5", "10", "mg"]),
        ("1:1000", ["1:1000"]),
        ("1:1,000", ["1:1000"]),
        ("1 : 1000", ["1:1000"]),
        ("500 mg/5 ml", ["500", "mg", "5", "ml"]),
        ("Note: 10 mg", ["note", "10", "mg"]),
    ],
)
def test_a_ratio_is_found_whole_and_its_amounts_by_themselves(text: str, tokens: list[str]) -> None:
    assert analyze(text, "en") == tokens


# Units, times and how often.


@pytest.mark.parametrize(
    ("text", "locale", "tokens"),
    [
        ("2tablets", "en", ["2", "tablet"]),
        ("10drops", "en", ["10", "drop"]),
        ("500milligrams", "en", ["500", "mg"]),
        ("500 mgs", "en", ["500", "mg"]),
        ("50 micrograms", "en", ["50", "mcg"]),
        ("24 hours", "en", ["24", "h"]),
        ("24-hour", "en", ["24", "h"]),
        ("2comprimidos", "es-419", ["2", "comprim"]),
        ("500miligramos", "es-419", ["500", "mg"]),
        ("20 hs", "es-419", ["20", "h"]),
        ("3días", "es-419", ["3", "dias"]),
        ("500miligramas", "pt-BR", ["500", "mg"]),
        ("10gotas", "pt-BR", ["10", "got"]),
        ("8horas", "pt-BR", ["8", "h"]),
        ("500mg錠", "en", ["500", "mg", "錠"]),
        ("80 percent", "en", ["80", "%"]),
        ("80 por ciento", "es-419", ["80", "%"]),
        ("80 por cento", "pt-BR", ["80", "%"]),
    ],
)
def test_a_unit_is_a_token_of_its_own_however_it_is_written(
    text: str, locale: Locale, tokens: list[str]
) -> None:
    assert analyze(text, locale) == tokens


def test_a_grain_is_no_gram() -> None:
    assert set(analyze("5 gr", "en")) & set(analyze("5 g", "en")) == {"5"}


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize(
    "text", ["8am", "8 am", "8 AM", "8 a.m.", "8a.m.", "8 A. M.", "8:00 a.m.", "08:00 am"]
)
def test_a_time_in_the_morning_is_one_however_it_is_written(text: str, locale: Locale) -> None:
    assert analyze(text, locale) == ["8", "a.m."]


def test_the_morning_is_no_verb() -> None:
    assert set(analyze("8 am", "en")).isdisjoint(analyze("I am", "en"))
    assert analyze("8:30 pm", "en") == ["8:30", "p.m."]
    assert analyze("20h30", "pt-BR") == analyze("20:30", "pt-BR") == ["20:30"]
    assert analyze("20h", "pt-BR") == ["20", "h"]


@pytest.mark.parametrize("text", ["2x", "2 x", "x2", "x 2", "2×", "2X"])
def test_how_often_is_said_in_either_order(text: str) -> None:
    assert sorted(analyze(text, "en")) == ["2", "x"]


@pytest.mark.parametrize("text", ["2x500mg", "2 x 500 mg", "2×500mg", "2 × 500 mg"])
def test_a_number_of_tablets_is_apart_from_their_dose(text: str) -> None:
    assert analyze(text, "en") == ["2", "x", "500", "mg"]


# Codes.


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("covid-19", ["covid-19", "covid19", "covid", "19"]),
        ("B-12", ["b-12", "b12", "b", "12"]),
        ("5-FU", ["5-fu", "5", "fu"]),
        ("2019-nCoV", ["2019-ncov", "2019", "ncov"]),
        ("3TC", ["3tc"]),
        ("17beta-estradiol", ["17beta-estradiol", "17beta", "estradiol"]),
        ("1-800-222-1222", ["1-800-222-1222", "1", "800", "222", "1222"]),
        ("0006-0749-31", ["0006-0749-31", "0006", "0749", "31"]),
        ("2020-03-15", ["2020-03-15", "2020", "03", "15"]),
        ("12/05/2020", ["12/05/2020", "12", "05", "2020"]),
        ("x-ray", ["x-ray", "x", "ray"]),
    ],
)
def test_a_code_is_found_whole_and_by_part(text: str, tokens: list[str]) -> None:
    assert analyze(text, "en") == tokens


# Any amount.


@_property
@given(_amounts, _units, _locales)
def test_space_between_number_and_unit_changes_nothing(
    amount: Decimal, unit: str, locale: Locale
) -> None:
    for digits in (f"{amount:f}", str(int(amount) + 1)):
        assert analyze(f"{digits}{unit}", locale) == analyze(f"{digits} {unit}", locale)


@_property
@given(_amounts, _amounts, _locales)
def test_no_token_of_a_value_is_one_of_another(
    one: Decimal, other: Decimal, locale: Locale
) -> None:
    assume(one != other)
    assert numbers(f"{one:f} mg", locale).isdisjoint(numbers(f"{other:f}mg", locale))


@_property
@given(st.integers(1, 9), st.sampled_from(["1/2", "1/4", "3/4", "½", "¼", "¾"]), _locales)
def test_whole_and_fraction_never_meet_what_they_are_made_of(
    whole: int, fraction: str, locale: Locale
) -> None:
    (token,) = numbers(f"{whole} {fraction} mg", locale)
    parts = {str(whole), *re.findall(r"\d", fraction), f"{whole}1", f"{whole}12", f"{whole}14"}
    assert float(token) > whole
    assert token not in parts


@_property
@given(st.lists(st.tuples(_amounts, _units), max_size=4), _locales)
def test_the_tokens_of_amounts_are_their_own_tokens(
    doses: list[tuple[Decimal, str]], locale: Locale
) -> None:
    text = ", ".join(f"{amount:f}{unit}" for amount, unit in doses if unit not in {"x", "u"})
    tokens = [token for token in analyze(text, locale) if token[0].isdigit()]
    assert analyze("; ".join(tokens), locale) == tokens


@_property
@given(st.from_regex(r"[a-z]{1,6}(-[0-9]{1,4}|-[a-z]{2,6}){1,3}", fullmatch=True))
def test_every_part_of_a_code_finds_it(code: str) -> None:
    whole = set(analyze(code, "en", stop_words=False))
    assert set(analyze(code.upper(), "en", stop_words=False)) == whole
    for part in code.split("-"):
        assert set(analyze(part, "en", stop_words=False)) <= whole


_AMOUNT_LIKE = st.text(alphabet="0123456789.,/:-–½× xhmgapabqçñé%µ\u0301", max_size=60)


@_property
@given(_AMOUNT_LIKE, _locales)
def test_case_and_composition_of_the_letters_change_no_amount(text: str, locale: Locale) -> None:
    tokens = analyze(text, locale)
    assert analyze(text.upper(), locale) == tokens
    assert analyze(unicodedata.normalize("NFC", text), locale) == tokens
    assert analyze(unicodedata.normalize("NFD", text), locale) == tokens


@_property
@given(_AMOUNT_LIKE, _locales)
def test_tokens_are_never_longer_than_twice_their_text_and_its_signs(
    text: str, locale: Locale
) -> None:
    tokens = analyze(text, locale)
    assert all(tokens)
    # Whole, joined and by part; a fraction sign is written out.
    assert sum(map(len, tokens)) <= 3 * len(text) + 6 * text.count("½") + 8 * text.count("/")


@pytest.mark.parametrize(
    "piece", ["1/", "1:", "1-", "1 000 ", "1 1/2 ", "1x", "x1", "8 am ", "1mg-", "1 and ", "1·"]
)
def test_the_tokens_of_a_long_text_are_as_many_times_more(piece: str) -> None:
    few, many = (sum(map(len, analyze(piece * times, "en"))) for times in (500, 5000))
    assert many <= 11 * few
