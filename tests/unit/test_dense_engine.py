"""The dense leg, on hand-made unit vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines import dense
from deployments.engines.dense import DenseEngine
from fakes_serve import GENERATION, FakeEmbedder, MemoryStore, make_chunk, make_query
from kb.errors import ModelError, StageUnavailable
from kb.types import Filters

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
) -> tuple[DenseEngine, MemoryStore]:
    chunks = [make_chunk(chunk_id) for chunk_id in vectors]
    store = MemoryStore(chunks, list(vectors.values()))
    embedder = FakeEmbedder(QUERIES, dimension, frozenset({"en"}))
    return DenseEngine(embedder, chunks, store, GENERATION), store


@pytest.fixture(params=["exact", "approximate"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DenseEngine:
    """An engine on either side of the size up to which every row is compared."""
    size = len(VECTORS)
    monkeypatch.setattr(dense, "EXACT_ROWS", size if request.param == "exact" else size - 1)
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
    vector = engine.search(make_query("far north")).query_vector

    assert vector is not None
    assert vector.tolist() == [0.0, 1.0]


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


@pytest.mark.parametrize("rows", [len(VECTORS), 1])
def test_a_store_of_another_dimension_is_refused_at_the_start(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "EXACT_ROWS", rows)

    with pytest.raises(ModelError, match=r"2 dimensions.*fake-embedder \(3 dimensions"):
        make_engine(dimension=3)


def test_an_empty_knowledge_base_finds_nothing() -> None:
    embedder = FakeEmbedder(QUERIES, 2, frozenset())
    store = MemoryStore([], np.empty((0, 2)).tolist())

    ranking = DenseEngine(embedder, [], store, GENERATION).search(make_query("east"))

    assert ranking.hits == ()
    assert ranking.generation == GENERATION


@pytest.mark.parametrize(("limit", "searches"), [(len(VECTORS), 0), (len(VECTORS) - 1, 1)])
def test_the_stores_own_search_is_asked_only_above_the_exact_size(
    limit: int, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "EXACT_ROWS", limit)
    engine, store = make_engine()

    engine.search(make_query("east"))

    assert store.searches == searches


def test_a_knowledge_base_of_twenty_thousand_sub_chunks_is_still_compared_exactly() -> None:
    assert dense.EXACT_ROWS == 20_000


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
    store = MemoryStore(chunks, [VECTORS[chunk.id] for chunk in chunks])
    engine = DenseEngine(FakeEmbedder(QUERIES, 2, frozenset()), chunks, store, GENERATION)

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
    store = MemoryStore(chunks, [at(place) for place in angles])
    embedder = FakeEmbedder({"asked": at(asked)}, 2, frozenset())
    apart = [min((place - asked) % 24, (asked - place) % 24) for place in angles]
    expected = sorted(range(len(angles)), key=lambda n: (apart[n], chunks[n].id))

    hits = (
        DenseEngine(embedder, chunks[::-1], store, GENERATION)
        .search(make_query("asked", depth))
        .hits
    )

    assert [hit.chunk_id for hit in hits] == [chunks[n].id for n in expected[:depth]]
