"""The locale of a query."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.types import Locale
from serve.languages import detect_locale, language_of, match_locale


@pytest.mark.parametrize(
    ("tag", "locale"),
    [
        ("en", "en"),
        ("en-GB", "en"),
        ("es", "es-419"),
        ("es-MX", "es-419"),
        ("es_MX", "es-419"),
        ("ES-419", "es-419"),
        ("es-Latn-AR", "es-419"),
        ("pt", "pt-BR"),
        ("PT", "pt-BR"),
        ("pt-PT", "pt-BR"),
    ],
)
def test_a_tag_maps_to_the_locale_of_its_language(tag: str, locale: Locale) -> None:
    assert match_locale(tag) == locale


@pytest.mark.parametrize("tag", ["de", "zh-Hant", "", "-", "est", "english", "e", "x-es", "ñ"])
def test_a_tag_of_another_language_maps_to_none(tag: str) -> None:
    assert match_locale(tag) is None


@pytest.mark.parametrize(("locale", "language"), [("en", "en"), ("es-419", "es"), ("pt-BR", "pt")])
def test_a_locale_names_its_language(locale: Locale, language: str) -> None:
    assert language_of(locale) == language


@pytest.mark.parametrize(
    ("query", "locale"),
    [
        ("Can I take ibuprofen with warfarin?", "en"),
        ("I keep forgetting my blood pressure pills", "en"),
        ("¿Puedo tomar ibuprofeno con warfarina?", "es-419"),
        ("Se me olvida tomar las pastillas para la presión", "es-419"),
        ("Posso tomar ibuprofeno com varfarina?", "pt-BR"),
        ("Não consigo lembrar de tomar os meus remédios", "pt-BR"),
    ],
)
def test_a_questions_locale_is_detected(query: str, locale: Locale) -> None:
    assert detect_locale(query) == locale


@pytest.mark.parametrize("query", ["ibuprofen", "2.5 mg", "???", "🙂🙂", "解熱鎮痛薬の用量"])
def test_what_could_be_any_language_gets_the_default(query: str) -> None:
    assert detect_locale(query) == "en"


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.text(min_size=1, max_size=200))
def test_any_text_gets_one_of_the_three_locales_and_always_the_same(text: str) -> None:
    locale = detect_locale(text)

    assert locale in {"en", "es-419", "pt-BR"}
    assert detect_locale(text) == locale
