"""The analyser of published BM25 baselines."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.analysis.lexical import LexicalConfig
from kb.analysis.published import STOP_WORDS, analyze_published
from kb.types import Locale


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The patients' doses", ["patient", "dose"]),
        ("Crohn's Crohn\u2019s CROHN'S", ["crohn", "crohn", "crohn"]),
        ("It isn't", ["isn't"]),
        ("2.5 mg, 25 mg; 1,000", ["2.5", "mg", "25", "mg", "1,000"]),
        ("0-dimensional bio-materials", ["0", "dimension", "bio", "materi"]),
        ("possibly reversibly terribly", ["possibl", "revers", "terribl"]),
        ("probably", ["probabl"]),
        ("cardiology cardiologies biology", ["cardiolog", "cardiolog", "biologi"]),
        ("as us", ["us"]),
        ("__ ??? \U0001f642", []),
        ("relational conditional", ["relat", "condit"]),
    ],
)
def test_tokens_are_those_of_the_baselines(text: str, tokens: list[str]) -> None:
    assert analyze_published(text) == tokens


def test_its_thirty_three_stop_words_are_dropped_in_any_case() -> None:
    assert len(STOP_WORDS) == 33
    for word in STOP_WORDS:
        assert analyze_published(word) == analyze_published(word.upper()) == []


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.text(max_size=60))
def test_no_text_makes_it_fail(text: str) -> None:
    assert all(analyze_published(text))


@pytest.mark.parametrize("locale", get_args(Locale))
def test_the_config_chooses_the_analyser(locale: Locale) -> None:
    text = "She was not cured by 1/2 tablet"
    published = LexicalConfig(analyzer="published").analyze(text, locale)
    assert published == ["she", "cure", "1", "2", "tablet"]
    assert "0.5" in LexicalConfig().analyze(text, locale)


def test_stop_words_can_be_kept() -> None:
    text = "should I be with the doctor"
    assert LexicalConfig().analyze(text, "en") == ["doctor"]
    assert LexicalConfig(stop_words=False).analyze(text, "en") == [
        "should",
        "i",
        "be",
        "with",
        "the",
        "doctor",
    ]
