"""The dense leg, on hand-made unit vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines import space_index
from deployments.engines.breaker import FAILURES_TO_OPEN
from deployments.engines.dense import DenseEngine, EmbedderPool, QueryRewriter
from fakes_serve import (
    GENERATION,
    FakeEmbedder,
    MemoryVectors,
    make_chunk,
    make_dense,
    make_generation,
    make_query,
)
from kb.analysis.lexical import LexicalConfig
from kb.errors import StageUnavailable
from kb.types import EXACT_ROWS, Filters, Hit, Locale, Vector, VectorSpace

NAN = float("nan")
QUERIES = {
    "east": [1.0, 0.0],
    "north": [0.0, 1.0],
    "far north": [0.0, 5.0],
    "flat": [1.0, 0.0, 0.0],
    "nan": [NAN, 0.0],
    "inf": [float("inf"), 0.0],
    "nothing": [0.0, 0.0],
}
# Cosines with east: 1, 0.8, 0.6, 0.6, 0 and -1; d comes before c in the store, not by id.
VECTORS = {
    "a:en:1": [1.0, 0.0],
    "b:en:1": [0.8, 0.6],
    "d:en:1": [0.6, -0.8],
    "c:en:1": [0.6, 0.8],
    "e:en:1": [0.0, 1.0],
    "f:en:1": [-1.0, 0.0],
}
EAST = [("a", 1.0), ("b", 0.8), ("c", 0.6), ("d", 0.6), ("e", 0.0), ("f", -1.0)]


def make_engine(
    vectors: dict[str, list[float]] = VECTORS, dimension: int = 2
) -> tuple[DenseEngine, MemoryVectors]:
    chunks = [make_chunk(chunk_id) for chunk_id in vectors]
    return make_dense(chunks, (FakeEmbedder(QUERIES, dimension, frozenset({"en"})), vectors))


@pytest.fixture(params=["exact", "approximate"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DenseEngine:
    """An engine on either side of the size up to which every row is compared."""
    size = len(VECTORS)
    monkeypatch.setattr(space_index, "EXACT_ROWS", size if request.param == "exact" else size - 1)
    return make_engine()[0]


def test_hits_are_ordered_by_cosine_then_by_id(engine: DenseEngine) -> None:
    ranking = engine.search(make_query("east"))

    assert [hit.chunk_id[0] for hit in ranking.hits] == [card for card, _ in EAST]
    assert [hit.score for hit in ranking.hits] == pytest.approx([c for _, c in EAST], abs=1e-6)
    assert ranking.generation == GENERATION
    assert ranking.filtered_out == 0


def test_cosines_that_differ_in_their_last_bit_alone_are_equal() -> None:
    just_above = float(np.nextafter(np.float32(0.6), np.float32(1.0)))
    engine, _ = make_engine({"a:en:1": [0.6, 0.8], "b:en:1": [just_above, 0.8]})

    first, second = engine.search(make_query("east")).hits

    assert (first.chunk_id, second.chunk_id) == ("a:en:1", "b:en:1")
    assert first.score == second.score == 0.6


def test_the_depth_cuts_the_order(engine: DenseEngine) -> None:
    hits = engine.search(make_query("east", depth=3)).hits

    assert [hit.chunk_id[0] for hit in hits] == ["a", "b", "c"]


def test_the_querys_vector_travels_with_the_ranking(engine: DenseEngine) -> None:
    ranking = engine.search(make_query("far north"))

    assert ranking.query_vector is not None
    assert ranking.query_vector.vector.tolist() == [0.0, 1.0]
    assert ranking.query_vector.generation == GENERATION


def test_similarities_come_in_the_order_that_was_asked_for(engine: DenseEngine) -> None:
    vector = engine.search(make_query("north")).query_vector
    assert vector is not None

    cosines = engine.similarities(vector, ["e:en:1", "d:en:1", "a:en:1", "e:en:1"])

    assert cosines == pytest.approx([1.0, -0.8, 0.0, 1.0], abs=1e-6)


def test_a_similarity_equals_the_score_of_the_search(engine: DenseEngine) -> None:
    ranking = engine.search(make_query("east"))
    assert ranking.query_vector is not None

    cosines = engine.similarities(ranking.query_vector, [hit.chunk_id for hit in ranking.hits])

    assert cosines == pytest.approx([hit.score for hit in ranking.hits], abs=1e-6)


@pytest.mark.parametrize("query", ["nan", "inf", "nothing"])
def test_a_broken_query_vector_is_a_failure_of_the_leg(engine: DenseEngine, query: str) -> None:
    with pytest.raises(StageUnavailable) as failure:
        engine.search(make_query(query))

    assert (failure.value.stage, failure.value.reason) == ("dense", "broken_vector")


def test_a_query_of_another_dimension_is_refused(engine: DenseEngine) -> None:
    with pytest.raises(StageUnavailable) as failure:
        engine.search(make_query("flat"))

    assert (failure.value.stage, failure.value.reason) == ("dense", "wrong_dimension")
    assert "(3,)" in str(failure.value)
    assert "(2,)" in str(failure.value)


def test_an_empty_knowledge_base_finds_nothing() -> None:
    engine, _ = make_dense([], (FakeEmbedder(QUERIES, 2, frozenset()), {}))

    ranking = engine.search(make_query("east"))

    assert ranking.hits == ()
    assert ranking.generation == GENERATION


@pytest.mark.parametrize(("limit", "searches"), [(len(VECTORS), 0), (len(VECTORS) - 1, 1)])
def test_the_stores_own_search_is_asked_only_above_the_exact_size(
    limit: int, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_index, "EXACT_ROWS", limit)
    engine, store = make_engine()

    engine.search(make_query("east"))

    assert len(store.searches) == searches
    assert engine.exact == (searches == 0)


def test_a_knowledge_base_of_twenty_thousand_sub_chunks_is_still_compared_exactly() -> None:
    assert EXACT_ROWS == 20_000


@pytest.mark.parametrize(
    ("filters", "expected", "filtered_out"),
    [
        (Filters(category=frozenset({"escalation"})), ["b", "f"], 4),
        (Filters(drugs=frozenset({"insulin", "warfarin"})), ["a", "c", "e"], 3),
        (Filters(frozenset({"escalation"}), frozenset({"insulin"})), [], 6),
        (Filters(drugs=frozenset({"aspirin"})), [], 6),
    ],
)
def test_filters_keep_what_they_accept_and_count_what_they_dropped(
    filters: Filters, expected: list[str], filtered_out: int
) -> None:
    chunks = [
        make_chunk(
            f"{card}:en:1",
            category="escalation" if card in "bf" else "drug-interaction",
            drugs=("warfarin",) if card in "ac" else ("insulin",) if card == "e" else (),
        )
        for card in "abcdef"
    ]
    engine, _ = make_dense(chunks, (FakeEmbedder(QUERIES, 2, frozenset()), VECTORS))

    ranking = engine.search(make_query("east", filters=filters))

    assert [hit.chunk_id[0] for hit in ranking.hits] == expected
    assert ranking.filtered_out == filtered_out


def test_a_long_card_does_not_keep_the_others_out() -> None:
    vectors = {f"A:en:{n}": [1.0, 0.0] for n in range(9)}
    vectors |= {"B:en:1": [0.8, 0.6], "C:en:1": [0.6, 0.8], "D:en:1": [0.0, 1.0]}
    engine, _ = make_engine(vectors)

    hits = engine.search(make_query("east", depth=3, min_cards=3)).hits

    assert [hit.chunk_id[0] for hit in hits] == list("AAABC")


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(st.integers(0, 23), min_size=1, max_size=12), st.integers(0, 23), st.integers(1, 12)
)
def test_the_order_is_that_of_the_angles(angles: list[int], asked: int, depth: int) -> None:
    """Vectors at multiples of 15 degrees: how far apart two are is known without any cosine."""

    def at(place: int) -> Sequence[float]:
        return [np.cos(np.pi * place / 12), np.sin(np.pi * place / 12)]

    chunks = [make_chunk(f"c{n:02}:en:1") for n in range(len(angles))]
    vectors = {chunk.id: at(place) for chunk, place in zip(chunks, angles, strict=True)}
    embedder = FakeEmbedder({"asked": at(asked)}, 2, frozenset())
    apart = [min((place - asked) % 24, (asked - place) % 24) for place in angles]
    expected = sorted(range(len(angles)), key=lambda n: (apart[n], chunks[n].id))

    engine, _ = make_dense(chunks[::-1], (embedder, vectors))
    hits = engine.search(make_query("asked", depth)).hits

    assert [hit.chunk_id for hit in hits] == [chunks[n].id for n in expected[:depth]]


def test_an_approximate_search_asks_on_until_the_filters_have_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_index, "EXACT_ROWS", 10)
    vectors = {f"a{n:03}:en:1": [np.cos(n / 1000), np.sin(n / 1000)] for n in range(200)}
    chunks = [
        make_chunk(i, category="escalation" if i > "a190" else "drug-interaction") for i in vectors
    ]
    engine, store = make_dense(chunks, (FakeEmbedder(QUERIES, 2, frozenset()), vectors))

    query = make_query("east", depth=5, filters=Filters(frozenset({"escalation"})))
    hits = engine.search(query).hits

    assert [hit.chunk_id[:4] for hit in hits] == ["a190", "a191", "a192", "a193", "a194"]
    assert store.searches == [20, 80, 320]


def test_rows_that_the_stores_index_does_not_reach_are_compared_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_index, "EXACT_ROWS", 3)
    chunks = [make_chunk(chunk_id) for chunk_id in VECTORS]
    embedder = FakeEmbedder(QUERIES, 2, frozenset())
    space = VectorSpace(embedder.fingerprint, (), len(VECTORS))

    class Losing(MemoryVectors):
        def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
            return [hit for hit in super().search(space, vector, depth) if hit.chunk_id[0] != "b"]

    reader = Losing({space.name: VECTORS})
    without = space_index.SpaceIndex(space, chunks, reader)
    index = space_index.SpaceIndex(space, chunks, reader, apart=["b:en:1"])
    query, vector = make_query("east", depth=6), embedder.embed_query("east")

    assert [hit.chunk_id[0] for hit in without.search(vector, query)[0]] == list("acdef")
    assert [hit.chunk_id[0] for hit in index.search(vector, query)[0]] == list("abcdef")


# Several spaces: the first whose embedder is healthy and covers the language.

THREE_LOCALES = [
    make_chunk("a:en:1", locale="en"),
    make_chunk("a:es-419:1", locale="es-419"),
    make_chunk("b:en:1", locale="en"),
]
ENGLISH_ROWS = {"a:en:1": [1.0, 0.0], "b:en:1": [0.0, 1.0]}
ALL_ROWS = ENGLISH_ROWS | {"a:es-419:1": [0.8, 0.6]}


def english() -> FakeEmbedder:
    return FakeEmbedder(QUERIES, 2, frozenset({"en"}), "english")


def multilingual() -> FakeEmbedder:
    return FakeEmbedder(QUERIES, 2, frozenset(), "multilingual")


def test_a_query_goes_to_the_first_space_that_covers_its_language() -> None:
    one, other = english(), multilingual()
    engine, _ = make_dense(THREE_LOCALES, (one, ENGLISH_ROWS), (other, ALL_ROWS))

    in_english = engine.search(make_query("east"))
    in_spanish = engine.search(make_query("east", locale="es-419"))

    assert in_english.query_vector is not None
    assert in_english.query_vector.space.startswith("english-")
    assert in_spanish.query_vector is not None
    assert in_spanish.query_vector.space.startswith("multilingual-")
    assert in_english.passed_over == in_spanish.passed_over == ()


def test_of_each_card_only_the_version_in_the_querys_locale_or_the_english_one_is_found() -> None:
    engine, _ = make_dense(THREE_LOCALES, (multilingual(), ALL_ROWS))

    found = {
        locale: [hit.chunk_id for hit in engine.search(make_query("east", locale=locale)).hits]
        for locale in ("en", "es-419", "pt-BR")
    }

    assert found == {
        "en": ["a:en:1", "b:en:1"],
        "es-419": ["a:es-419:1", "b:en:1"],
        "pt-BR": ["a:en:1", "b:en:1"],
    }


def test_a_failing_embedder_is_passed_over_with_its_reason() -> None:
    one, other = english(), multilingual()
    engine, _ = make_dense(THREE_LOCALES, (one, ENGLISH_ROWS), (other, ALL_ROWS))
    one.fault = "rate_limited"

    ranking = engine.search(make_query("east"))

    assert [hit.chunk_id for hit in ranking.hits] == ["a:en:1", "b:en:1"]
    assert ranking.query_vector is not None
    assert ranking.query_vector.space.startswith("multilingual-")
    assert ranking.passed_over == (("english", "rate_limited"),)


def test_after_repeated_failures_an_embedder_is_not_even_asked() -> None:
    one, other = english(), multilingual()
    engine, _ = make_dense(THREE_LOCALES, (one, ENGLISH_ROWS), (other, ALL_ROWS))
    one.fault = "timeout"
    asked = one.asked

    reasons = [engine.search(make_query("east")).passed_over[0][1] for _ in range(6)]

    assert reasons == ["timeout"] * FAILURES_TO_OPEN + ["breaker_open"] * 3
    assert one.asked == asked + FAILURES_TO_OPEN


def test_an_embedder_that_is_not_at_hand_is_passed_over_too() -> None:
    one, other = english(), multilingual()
    one.fault = "absent"
    engine, _ = make_dense(THREE_LOCALES, (one, ENGLISH_ROWS), (other, ALL_ROWS))

    assert engine.search(make_query("east")).passed_over == (("english", "no_embedder"),)
    assert "english (2 dimensions, revision 1) unavailable" in engine.status()


def test_when_every_space_fails_the_leg_fails_with_the_first_reason() -> None:
    one, other = english(), multilingual()
    engine, _ = make_dense(THREE_LOCALES, (one, ENGLISH_ROWS), (other, ALL_ROWS))
    one.fault, other.fault = "rate_limited", "timeout"

    with pytest.raises(StageUnavailable) as failure:
        engine.search(make_query("east"))

    assert failure.value.reason == "rate_limited"
    assert "multilingual: timeout" in failure.value.detail


def test_a_language_that_no_space_covers_is_a_failure_of_the_leg_with_its_reason() -> None:
    engine, _ = make_dense(THREE_LOCALES, (english(), ENGLISH_ROWS))

    with pytest.raises(StageUnavailable) as failure:
        engine.search(make_query("east", locale="pt-BR"))

    assert failure.value.reason == "language_not_covered"


def test_no_further_space_is_tried_when_the_time_is_over() -> None:
    one, other = english(), multilingual()
    engine, _ = make_dense(THREE_LOCALES, (one, ENGLISH_ROWS), (other, ALL_ROWS))
    asked = other.asked

    with pytest.raises(StageUnavailable):
        engine.search(replace(make_query("east"), deadline=-1.0))

    assert other.asked == asked


def test_a_sub_chunk_outside_the_space_has_no_similarity() -> None:
    engine, _ = make_dense(THREE_LOCALES, (english(), ENGLISH_ROWS))
    query = engine.search(make_query("east")).query_vector
    assert query is not None

    assert engine.similarities(query, ["a:es-419:1", "b:en:1"]) == [None, 0.0]
    assert engine.similarities(query, ["a:es-419:1"]) == [None]


def test_a_generation_without_vectors_says_that_there_is_no_embedder() -> None:
    engine, _ = make_dense(THREE_LOCALES)

    with pytest.raises(StageUnavailable) as failure:
        engine.search(make_query("east"))

    assert failure.value.reason == "no_embedder"
    assert engine.exact


# A drug's other names


class Names:
    """A rewriter that adds a word to a query, and remembers what it was given."""

    def __init__(self, added: str) -> None:
        self._added = added
        self.given: list[tuple[str, Locale]] = []

    def with_names(self, text: str, locale: Locale) -> str:
        self.given.append((text, locale))
        return f"{text} {self._added}".strip()


def with_names(names: Mapping[Locale, QueryRewriter] | None) -> DenseEngine:
    """Put the engine over one space, with what rewrites queries before they are embedded."""
    embedder = FakeEmbedder(QUERIES | {"east far": [-1.0, 0.0]}, 2, frozenset())
    space = VectorSpace(embedder.fingerprint, (), len(ALL_ROWS))
    loaded = make_generation(THREE_LOCALES)
    served = replace(loaded, manifest=replace(loaded.manifest, spaces=(space,)))
    reader = MemoryVectors({space.name: ALL_ROWS})
    return DenseEngine(served, reader, EmbedderPool(lambda _: embedder), names, lambda: 0.0)


def asked_towards(engine: DenseEngine, locale: Locale = "en") -> list[float]:
    vector = engine.search(make_query("east", locale=locale)).query_vector
    assert vector is not None
    return [float(x) for x in vector.vector]


def test_a_query_is_embedded_with_the_names_that_are_added_to_it() -> None:
    names = Names("far")

    assert asked_towards(with_names({"en": names})) == [-1.0, 0.0]
    assert names.given == [("east", "en")]


def test_without_names_a_query_is_embedded_as_it_was_typed() -> None:
    assert asked_towards(with_names(None)) == [1.0, 0.0]
    assert asked_towards(with_names({})) == [1.0, 0.0]
    assert asked_towards(with_names({"en": Names("")})) == [1.0, 0.0]


def test_the_names_are_those_of_the_querys_locale() -> None:
    english, spanish = Names("far"), Names("")
    engine = with_names({"en": english, "es-419": spanish})

    assert asked_towards(engine, "es-419") == [1.0, 0.0]
    assert asked_towards(engine, "pt-BR") == [1.0, 0.0]
    assert (english.given, spanish.given) == ([], [("east", "es-419")])


def test_the_shipped_names_are_brought_in_by_the_words_of_the_cards() -> None:
    chunks = [make_chunk("a:en:1", "Warfarin and ibuprofen.", drugs=("warfarin",))]
    names = LexicalConfig(drug_names=True).expansions(chunks)

    assert set(names) == {"en", "es-419", "pt-BR"}
    assert names["en"].with_names("is coumadin safe", "en") == "is coumadin safe (warfarin)"
    assert names["en"].with_names("is warfarin safe", "en") == "is warfarin safe"
    assert LexicalConfig(drug_names=False).expansions(chunks) == {}
