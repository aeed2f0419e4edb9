"""What holds of any answer, over the real engines on small knowledge bases drawn at random."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.bm25 import Bm25Engine
from deployments.engines.dense import DenseEngine
from fakes_serve import (
    GENERATION,
    FakeDenseLeg,
    FakeEmbedder,
    FakeLeg,
    World,
    make_chunk,
    make_dense,
)
from kb.analysis.analyzer import analyze
from kb.types import LegQuery, QueryVector, Ranking, SubChunk
from serve.schemas import RetrieveResponse

WORDS = ("warfarin", "ibuprofen", "dose", "bleeding", "2.5", "mg", "missed", "tablet")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
KNOWLEDGE = st.lists(st.tuples(st.sampled_from("abcdef"), TEXTS), min_size=1, max_size=14)
PROPERTY = settings(deadline=None, max_examples=30, derandomize=True)


class WordVectors(dict[str, list[float]]):
    """The vector of a text counts its words, and never is all zeros."""

    def __missing__(self, text: str) -> list[float]:
        words = text.split()
        return [*(float(words.count(word)) for word in WORDS), 0.5]


class EngineLeg(FakeLeg):
    """A leg that asks a real engine."""

    def __init__(self, engine: Bm25Engine) -> None:
        super().__init__("bm25")
        self._engine = engine

    async def search(self, query: LegQuery) -> Ranking:
        return self._engine.search(query)


class DenseEngineLeg(FakeDenseLeg):
    """The dense one."""

    def __init__(self, engine: DenseEngine) -> None:
        super().__init__()
        self._engine = engine

    async def search(self, query: LegQuery) -> Ranking:
        return self._engine.search(query)

    async def similarities(
        self, query: QueryVector, chunk_ids: Sequence[str]
    ) -> list[float | None]:
        return self._engine.similarities(query, chunk_ids)


def rows_of(knowledge: list[tuple[str, str]]) -> list[SubChunk]:
    return [make_chunk(f"{card}:en:{n}", text) for n, (card, text) in enumerate(knowledge)]


def ask(
    rows: list[SubChunk], query: str, top_k: int, *, hybrid: bool = True, floor: float | None = None
) -> RetrieveResponse:
    embedder = FakeEmbedder(WordVectors(), len(WORDS) + 1, frozenset())
    vectors = {row.id: embedder.embed_query(row.text).tolist() for row in rows}
    world = World(
        rows,
        EngineLeg(Bm25Engine(rows, GENERATION)),
        DenseEngineLeg(make_dense(rows, (embedder, vectors))[0]),
    )
    asked = world.ask(query=query, top_k=top_k, hybrid=hybrid, min_similarity=floor, explain=True)
    return asyncio.run(asked)


@PROPERTY
@given(KNOWLEDGE, TEXTS, st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_nothing(
    knowledge: list[tuple[str, str]], query: str, hybrid: bool, random: Random
) -> None:
    rows = rows_of(knowledge)
    shuffled = list(rows)
    random.shuffle(shuffled)

    answer = ask(rows, query, 5, hybrid=hybrid)
    again = ask(shuffled, query, 5, hybrid=hybrid)

    assert [hit.chunk_id for hit in again.hits] == [hit.chunk_id for hit in answer.hits]
    assert again.hybrid_path == answer.hybrid_path


@PROPERTY
@given(KNOWLEDGE, TEXTS, st.integers(1, 8))
def test_an_answer_is_distinct_cards_and_as_many_as_there_are(
    knowledge: list[tuple[str, str]], query: str, top_k: int
) -> None:
    rows = {row.id: row for row in rows_of(knowledge)}

    answer = ask(list(rows.values()), query, top_k)

    cards = [hit.card_id for hit in answer.hits]
    assert len(cards) == len(set(cards)) == min(top_k, len({card for card, _ in knowledge}))
    assert all(rows[hit.chunk_id].text == hit.passage for hit in answer.hits)
    assert all(rows[hit.chunk_id].card_id == hit.card_id for hit in answer.hits)


@PROPERTY
@given(KNOWLEDGE, TEXTS)
def test_the_evidence_of_the_lexical_leg_is_a_shared_word(
    knowledge: list[tuple[str, str]], query: str
) -> None:
    for hit in ask(rows_of(knowledge), query, 8).hits:
        assert hit.evidence is not None
        shared = set(analyze(hit.passage, "en")) & set(analyze(query, "en"))
        assert (hit.evidence.bm25 is not None) == bool(shared)
        assert hit.evidence.dense is not None  # The dense leg ranks every row of a small base.


@PROPERTY
@given(KNOWLEDGE, TEXTS, st.integers(1, 5), st.integers(1, 5))
def test_the_answer_for_fewer_begins_the_answer_for_more(
    knowledge: list[tuple[str, str]], query: str, top_k: int, more: int
) -> None:
    rows = rows_of(knowledge)

    short, long = ask(rows, query, top_k), ask(rows, query, top_k + more)

    assert long.hits[: len(short.hits)] == short.hits


@PROPERTY
@given(KNOWLEDGE, TEXTS, st.floats(-1, 1))
def test_what_is_left_above_the_floor_is_what_is_as_near_as_that(
    knowledge: list[tuple[str, str]], query: str, floor: float
) -> None:
    rows = rows_of(knowledge)

    everything, left = ask(rows, query, 8), ask(rows, query, 8, floor=floor)

    near = [
        h.card_id for h in everything.hits if h.similarity is not None and h.similarity >= floor
    ]
    assert [hit.card_id for hit in left.hits] == near
