"""The lexical leg's analyser: what is the same word, and what must never be."""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kb.analysis import analyzer
from kb.analysis.analyzer import analyze, fold_accents
from kb.analysis.stop_words import STOP_WORDS
from kb.types import Locale

LOCALES: tuple[Locale, ...] = get_args(Locale)
INVISIBLE = ("\u00ad", "\u200b", "\u200c", "\u200d", "\u200e", "\u2060", "\ufeff")

_locales = st.sampled_from(LOCALES)
_latin = st.text(
    alphabet=st.characters(codec="utf-8", min_codepoint=0x20, max_codepoint=0x24F), max_size=40
)
_any_text = st.text(alphabet=st.characters(), max_size=60)
_with_surrogates = st.text(alphabet=st.characters(exclude_categories=()), max_size=60)
# Two decimals: "4.000" is four thousand in Portuguese.
_amounts = st.decimals(min_value="0.01", max_value="9999", places=2)
_property = settings(deadline=None, derandomize=True, max_examples=60)


# S06: one word, however its letters are encoded.


@pytest.mark.parametrize(
    ("word", "locale"),
    [
        ("medicación para la fiebre", "es-419"),
        ("interações com a varfarina às vezes", "pt-BR"),
        ("niño pequeño", "es-419"),
        ("Ménière's naïve café", "en"),
        ("ΟΙΔΗΜΑ ά", "en"),
    ],
)
def test_composed_and_decomposed_letters_give_the_same_tokens(word: str, locale: Locale) -> None:
    composed = unicodedata.normalize("NFC", word)
    decomposed = unicodedata.normalize("NFD", word)
    assert composed != decomposed
    assert analyze(composed, locale) == analyze(decomposed, locale)
    assert analyze(composed.upper(), locale) == analyze(decomposed, locale)


@_property
@given(st.one_of(_latin, _any_text), _locales)
def test_any_text_and_its_decomposed_form_give_the_same_tokens(text: str, locale: Locale) -> None:
    expected = analyze(text, locale)
    assert analyze(unicodedata.normalize("NFC", text), locale) == expected
    assert analyze(unicodedata.normalize("NFD", text), locale) == expected


@pytest.mark.parametrize(
    "text", ["ｗａｒｆａｒｉｎ ２．５ｍｇ", "warfarin 2.5㎎", "WARFARIN 2.5 MG", "𝐖arfarin 2.5 mg"]
)
def test_width_and_compatibility_forms_and_case_are_one(text: str) -> None:
    assert analyze(text, "en") == ["warfarin", "2.5", "mg"]


@pytest.mark.parametrize("sign", ["®", "™", "℠", "©", "*", "†", "¹"])
def test_a_sign_behind_a_brand_name_does_not_change_the_name(sign: str) -> None:
    assert analyze("Coumadin", "en")[0] in analyze(f"Coumadin{sign} tablets", "en")


def test_ligatures_and_special_cases_are_folded_alike() -> None:
    assert analyze("ﬁbrate", "en") == analyze("FIBRATE", "en")
    assert analyze("Straße", "en") == analyze("STRASSE", "en") == analyze("STRAẞE", "en")


@pytest.mark.parametrize("word", ["İbuprofen", "i\u0304\u0308buprofen", "ibup\u0303rofen"])
def test_a_mark_without_a_composed_letter_does_not_split_the_word(word: str) -> None:
    assert analyze(word, "en") == analyze("ibuprofen", "en")


@pytest.mark.parametrize("mark", INVISIBLE)
def test_invisible_characters_change_nothing(mark: str) -> None:
    assert analyze(f"war{mark}farin 2{mark}.5 m{mark}g", "en") == ["warfarin", "2.5", "mg"]


@_property
@given(_latin, st.sampled_from(INVISIBLE), st.integers(0, 40), _locales)
def test_an_invisible_character_anywhere_changes_nothing(
    text: str, mark: str, place: int, locale: Locale
) -> None:
    assume("\u00ad" not in text)
    assert analyze(text[:place] + mark + text[place:], locale) == analyze(text, locale)


# Accents and the letters that only look like accents.


@pytest.mark.parametrize(
    ("accented", "bare", "locale"),
    [
        ("medicación", "medicacion", "es-419"),
        ("presión", "presion", "es-419"),
        ("corazón", "corazon", "es-419"),
        ("cápsulas", "capsulas", "es-419"),
        ("estómago", "estomago", "es-419"),
        ("medicação", "medicacao", "pt-BR"),
        ("coração", "coracao", "pt-BR"),
        ("interações", "interacoes", "pt-BR"),
        ("insuficiência", "insuficiencia", "pt-BR"),
    ],
)
def test_a_word_typed_without_its_accents_is_the_same_word(
    accented: str, bare: str, locale: Locale
) -> None:
    assert analyze(accented, locale) == analyze(bare, locale)


def test_the_tilde_of_n_makes_another_letter() -> None:
    assert analyze("años", "es-419") != analyze("anos", "es-419")
    assert analyze("nin\u0303o", "es-419") == analyze("NIÑO", "es-419")
    assert "ñ" in analyze("niño", "es-419")[0]


def test_folding_drops_accents_but_not_the_tilde_of_n() -> None:
    assert fold_accents("àéîõüçñ") == "aeioucñ"
    assert fold_accents("plain 2.5") == "plain 2.5"


# S07: numbers are values.


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("2.5 mg", ["2.5", "mg"]),
        ("2.5mg", ["2.5", "mg"]),
        ("2.50 mg", ["2.5", "mg"]),
        ("02.5 mg", ["2.5", "mg"]),
        ("2,5 mg", ["2.5", "mg"]),
        ("2.5 mg.", ["2.5", "mg"]),
        ("(2.5mg)", ["2.5", "mg"]),
        ("dose 2.5.", ["dose", "2.5"]),
        ("dose 2.5, then", ["dose", "2.5"]),
        (".5 mg", ["0.5", "mg"]),
        ("0.5 mg", ["0.5", "mg"]),
        ("5.0 mg", ["5", "mg"]),
        ("5.00 mg", ["5", "mg"]),
        ("3.375 g", ["3.375", "g"]),
        ("0.125 mg", ["0.125", "mg"]),
        ("100 mg", ["100", "mg"]),
        ("1,000 mg", ["1000", "mg"]),
        ("1000 mg", ["1000", "mg"]),
        ("10,000.50 IU", ["10000.5", "iu"]),
        ("1,234,567", ["1234567"]),
        ("0", ["0"]),
        ("0.0", ["0"]),
        ("500mg/5ml", ["500", "mg", "5", "ml"]),
        ("2.5-5mg", ["2.5", "5", "mg"]),
        ("2.5\u20135 mg", ["2.5", "5", "mg"]),
        ("7.5%", ["7.5", "%"]),
        ("2x", ["2", "x"]),
        ("24h", ["24", "h"]),
        ("5-mg", ["5", "mg"]),
    ],
)
def test_an_amount_is_its_value_and_its_unit(text: str, tokens: list[str]) -> None:
    assert analyze(text, "en") == tokens


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("warfarin 2.5 mg", "warfarin 25 mg"),
        ("2.5mg", "25mg"),
        ("0.25 mg", "25 mg"),
        ("0.125 mg", "125 mg"),
        ("1.25", "12.5"),
        ("10", "1"),
        ("1000", "1"),
        ("0,125", "125"),
    ],
)
@pytest.mark.parametrize("locale", LOCALES)
def test_amounts_that_differ_by_their_point_share_no_number(
    one: str, other: str, locale: Locale
) -> None:
    def numbers(text: str) -> set[str]:
        return {token for token in analyze(text, locale) if token[0].isdigit()}

    assert numbers(one).isdisjoint(numbers(other))


@_property
@given(_amounts, _amounts, _locales)
def test_unlike_amounts_are_unlike_and_like_ones_alike(
    one: Decimal, other: Decimal, locale: Locale
) -> None:
    assert (analyze(f"{one:f} mg", locale) == analyze(f"{other:f} mg", locale)) == (one == other)


@_property
@given(_amounts, st.sampled_from(["mg", "mcg", "g", "ml", "h", "IU", "mEq"]), _locales)
def test_space_zeros_and_unit_never_change_the_amount(
    amount: Decimal, unit: str, locale: Locale
) -> None:
    plain = f"{amount:f}".rstrip("0").rstrip(".")
    tokens = [plain, unit.casefold()]
    for digits in (plain, f"{amount:f}", f"0{plain}", f"{amount:f}".replace(".", ",")):
        assert analyze(f"{digits} {unit}", locale) == tokens
        assert analyze(f"({digits}{unit})", locale) == tokens


@_property
@given(st.integers(1, 999), _locales)
def test_thousandths_stay_thousandths_with_point_or_comma(number: int, locale: Locale) -> None:
    expected = [f"0.{number:03}".rstrip("0")]
    assert analyze(f"0.{number:03}", locale) == expected
    assert analyze(f".{number:03}", locale) == expected
    assert analyze(f"0,{number:03}", locale) == expected


@_property
@given(st.integers(1000, 10_000_000))
def test_grouped_thousands_are_the_same_number(number: int) -> None:
    assert analyze(f"{number:,}", "en") == analyze(str(number), "en") == [str(number)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("0,125 mg", ["0.125", "mg"]),
        ("2,5 mg", ["2.5", "mg"]),
        ("12,5mg", ["12.5", "mg"]),
        ("4.000 mg", ["4000", "mg"]),
        ("10.000 UI", ["10000", "ui"]),
        ("1.234,5 mg", ["1234.5", "mg"]),
    ],
)
def test_portuguese_writes_commas_for_points_and_points_for_thousands(
    text: str, tokens: list[str]
) -> None:
    assert analyze(text, "pt-BR") == tokens


@pytest.mark.parametrize("locale", LOCALES)
def test_a_number_never_begins_with_a_group_of_nought(locale: Locale) -> None:
    assert analyze("0,125 mg", locale) == ["0.125", "mg"]
    assert analyze("0,250mg", locale) == ["0.25", "mg"]


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2.5tablets", "2.5"),
        ("2.5mgs", "2.5"),
        ("0.5comprimidos", "0.5"),
        ("12.5milligrams", "12.5"),
        ("1,000tablets", "1000"),
        ("2.5mL/h", "2.5"),
    ],
)
def test_a_word_glued_to_a_decimal_leaves_it_whole(text: str, amount: str) -> None:
    assert [token for token in analyze(text, "en") if token[0].isdigit()] == [amount]


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("½ tablet", {"1", "2", "12"}),
        ("2½ tablets", {"21", "212"}),
        ("1¼ tablets", {"11", "114"}),
        ("10⁹/L", {"109"}),
    ],
)
def test_fractions_and_powers_never_make_another_whole_number(text: str, never: set[str]) -> None:
    assert never.isdisjoint(analyze(text, "en"))


def test_a_per_cent_sign_counts_alike_with_a_space_before_it_and_without() -> None:
    assert analyze("7.5 %", "es-419") == analyze("7.5%", "es-419")


@pytest.mark.parametrize("unit", ["mcg", "µg", "μg", "ug", "MCG"])
def test_all_ways_to_write_micrograms_are_one(unit: str) -> None:
    assert analyze(f"50{unit}", "en") == analyze(f"50 {unit}", "en") == ["50", "mcg"]


# Codes and hyphens.


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("14.2.1.0", ["14.2.1.0"]),
        ("A1C", ["a1c"]),
        ("vitamin B12", ["vitamin", "b12"]),
        ("HbA1c", ["hba1c"]),
        ("CYP2C9", ["cyp2c9"]),
    ],
)
def test_a_code_stays_as_it_is(text: str, tokens: list[str]) -> None:
    assert analyze(text, "en") == tokens


def test_unlike_codes_share_no_token() -> None:
    for one, other in (("14.2.1.0", "14.2.1"), ("b12", "b6"), ("t3", "t4"), ("b12", "12")):
        assert set(analyze(one, "en")).isdisjoint(analyze(other, "en"))


@pytest.mark.parametrize("hyphen", ["-", "\u2010", "\u2011"])
def test_a_hyphenated_word_is_findable_whole_and_by_part(hyphen: str) -> None:
    tokens = analyze(f"co{hyphen}trimoxazole", "en")
    assert set(tokens) == {"co-trimoxazol", "co", "trimoxazol"}
    assert set(analyze("trimoxazole", "en")) < set(tokens)


def test_a_soft_hyphen_is_no_hyphen() -> None:
    assert analyze("co\u00adtrimoxazole", "en") == analyze("cotrimoxazole", "en")


def test_curly_and_straight_apostrophes_are_one() -> None:
    for text in ("I'm", "it's", "don't", "patient's", "Crohn's"):
        assert analyze(text.replace("'", "\u2019"), "en") == analyze(text, "en")


# Words.


def test_a_query_of_function_words_has_no_tokens() -> None:
    assert analyze("Should I be with the ?", "en") == []
    assert analyze("¿Qué es esto para mí?", "es-419") == []
    assert analyze("O que é isso?", "pt-BR") in ([], ["e"])


def test_negations_are_kept() -> None:
    assert "not" in analyze("do not stop", "en")
    assert "no" in analyze("no tome esto", "es-419")
    assert analyze("não tome isto", "pt-BR") != analyze("tome isto", "pt-BR")


@pytest.mark.parametrize("locale", LOCALES)
def test_every_stop_word_is_dropped_in_every_form(locale: Locale) -> None:
    for word in STOP_WORDS[locale]:
        assert analyze(word, locale) == []
        assert analyze(unicodedata.normalize("NFD", word.upper()), locale) == []


@pytest.mark.parametrize(
    ("one", "other", "locale"),
    [
        ("tablets", "tablet", "en"),
        ("interactions", "interaction", "en"),
        ("pastillas", "pastilla", "es-419"),
        ("comprimidos", "comprimido", "pt-BR"),
    ],
)
def test_singular_and_plural_are_one(one: str, other: str, locale: Locale) -> None:
    assert analyze(one, locale) == analyze(other, locale)


def test_punctuation_and_pictures_have_no_tokens() -> None:
    for text in ("", " \n\t", "???", "...", "🙂🙂", "---", "\u200b", "\x00"):
        assert analyze(text, "en") == []


# S08: scripts without spaces.


@pytest.mark.parametrize(
    ("card", "query"),
    [
        ("国際標準化に関する動向", "国際標準化"),
        ("解熱鎮痛薬の用量", "用量"),
        ("アスピリンの用量", "アスピリン"),
        ("การใช้ยาพาราเซตามอล", "ยา"),
    ],
)
def test_a_word_inside_a_text_without_spaces_is_found(card: str, query: str) -> None:
    tokens = analyze(query, "en")
    assert tokens
    assert set(tokens) & set(analyze(card, "en"))
    assert set(tokens).isdisjoint(analyze("aspirin dosing", "en"))


def test_han_characters_become_pairs() -> None:
    assert analyze("国際標準", "en") == ["国際", "際標", "標準"]
    assert analyze("薬", "en") == ["薬"]


def test_latin_words_glued_to_han_characters_stay_whole() -> None:
    assert analyze("aspirin用量b", "en") == ["aspirin", "用量", "b"]


def test_spaced_scripts_keep_whole_words() -> None:
    assert analyze("이부프로펜", "en") == ["이부프로펜"]
    assert len(analyze("ибупрофен дозировка", "en")) == 2


# Any text at all.


@_property
@given(st.one_of(_any_text, _with_surrogates), _locales)
def test_no_text_makes_it_fail(text: str, locale: Locale) -> None:
    tokens = analyze(text, locale)
    assert all(token and not token.isspace() for token in tokens)
    assert analyze(text, locale) == tokens


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("form", ["{}", "{} mg", "{}½", "{}.5mg", "0.{}", "{}⁹", "{},000", "½{}"])
def test_a_number_of_any_length_is_read(form: str, digits: int, locale: Locale) -> None:
    assert analyze(form.format("9" * digits), locale)


def test_a_text_of_two_parts_has_the_tokens_of_both() -> None:
    one, other = "warfarin 2.5mg", "co-trimoxazole 用量"
    assert analyze(f"{one} {other}", "en") == analyze(one, "en") + analyze(other, "en")


@pytest.mark.parametrize(
    ("build", "locale"),
    [
        (lambda mark, size: f"{mark}-" * (size // 2), "en"),
        (lambda mark, size: f"{mark}-" * (size // 2), "pt-BR"),
        (lambda mark, size: mark * size, "en"),
        (lambda mark, size: f"{mark}'" * (size // 2), "en"),
        (lambda mark, size: f"{mark}.1" * (size // 3), "en"),
        (lambda mark, size: f"{ord(mark)}," * (size // 4), "en"),
        (lambda mark, size: "用" * (size - 1) + mark, "en"),
        (lambda mark, size: f"{mark}\u0301" * (size // 2), "en"),
        (lambda mark, size: str(ord(mark) % 10) * size, "en"),
        (lambda mark, size: f"{ord(mark)}½ " * (size // 5), "en"),
        (lambda mark, size: f"{mark}⁹" * (size // 2), "en"),
    ],
    ids=[
        "hyphens",
        "hyphens-pt",
        "letters",
        "apostrophes",
        "points",
        "commas",
        "han",
        "marks",
        "digits",
        "fractions",
        "powers",
    ],
)
def test_time_grows_with_the_text_and_no_faster(
    build: Callable[[str, int], str], locale: Locale
) -> None:
    def cost(size: int) -> float:
        # A letter of its own each time, since normal forms are remembered.
        texts = [build(mark, size) for mark in "bdg"]
        best = float("inf")
        for text in texts:
            start = time.process_time()
            analyze(text, locale)
            best = min(best, time.process_time() - start)
        return best

    cost(1000)
    small, large = cost(2_000), cost(8 * 2_000)
    assert large < 8 * 4 * small  # Quadratic would be 64 times as much.


def test_a_megabyte_of_hyphens_is_read() -> None:
    assert len(analyze("b-" * 500_000, "en")) == 500_001


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    """Change threads as often as can be, so that what is not locked breaks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_eager_threads")
def test_threads_get_what_one_thread_gets() -> None:
    texts = [" ".join(f"{chr(97 + n)}{m}interactions" for m in "abcdefgh") for n in range(26)] * 4
    analyzer._normal_form.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: analyze(text, "en"), texts))
    analyzer._normal_form.cache_clear()
    assert together == [analyze(text, "en") for text in texts]
