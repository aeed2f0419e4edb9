"""Which version of a card a query sees."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_kb import sub_chunk
from kb.types import Locale, SubChunk
from kb.views import LOCALES, view_of


def _card(number: int, *locales: Locale, rows: int = 1) -> list[SubChunk]:
    """Make a card in some languages, of so many rows each."""
    return [
        replace(sub_chunk(number, locale=locale), id=f"card-{number}:{locale}:{n}", ordinal=n)
        for locale in locales
        for n in range(1, rows + 1)
    ]


def test_there_are_three_locales() -> None:
    assert LOCALES == ("en", "es-419", "pt-BR")


def test_of_nothing_nothing_is_seen() -> None:
    assert view_of([], "en") == frozenset()


@pytest.mark.parametrize(
    ("there", "asked", "seen"),
    [
        (LOCALES, "en", "en"),
        (LOCALES, "es-419", "es-419"),
        (LOCALES, "pt-BR", "pt-BR"),
        (("en", "pt-BR"), "es-419", "en"),
        (("es-419", "en"), "pt-BR", "en"),
        (("pt-BR", "es-419"), "en", "es-419"),
        (("es-419",), "en", "es-419"),
        (("pt-BR",), "es-419", "pt-BR"),
        (("en",), "pt-BR", "en"),
    ],
)
def test_a_card_is_seen_in_the_querys_language_or_english_or_what_there_is(
    there: tuple[Locale, ...], asked: Locale, seen: Locale
) -> None:
    assert view_of(_card(1, *there), asked) == {f"card-1:{seen}:1"}


def test_all_rows_of_the_version_are_seen_and_none_of_another() -> None:
    chunks = [*_card(1, "en", "es-419", rows=3), *_card(2, "en", rows=2)]
    assert view_of(chunks, "es-419") == {
        "card-1:es-419:1",
        "card-1:es-419:2",
        "card-1:es-419:3",
        "card-2:en:1",
        "card-2:en:2",
    }


_rows = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(LOCALES), st.integers(1, 3)), unique=True
).map(
    lambda keys: [
        replace(sub_chunk(card, locale=locale), id=f"card-{card}:{locale}:{n}", ordinal=n)
        for card, locale, n in keys
    ]
)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(_rows, st.sampled_from(LOCALES), st.randoms(use_true_random=False))
def test_each_card_is_seen_in_just_one_version_and_whole(
    chunks: list[SubChunk], asked: Locale, random: object
) -> None:
    seen = view_of(chunks, asked)
    versions: defaultdict[str, set[Locale]] = defaultdict(set)
    for chunk in chunks:
        if chunk.id in seen:
            versions[chunk.card_id].add(chunk.locale)
    assert versions.keys() == {chunk.card_id for chunk in chunks}
    for card_id, (locale, *others) in versions.items():
        assert others == []
        there = {chunk.locale for chunk in chunks if chunk.card_id == card_id}
        assert locale == asked or asked not in there
        assert locale in {asked, "en"} or "en" not in there
        whole = {c.id for c in chunks if (c.card_id, c.locale) == (card_id, locale)}
        assert whole <= seen
    random.shuffle(chunks)  # type: ignore[attr-defined]
    assert view_of(chunks, asked) == seen
