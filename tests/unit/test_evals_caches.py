"""An evaluation asks each model the same thing once, and gets what the model said."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evals.memory import RememberedDense, RememberedLexical
from evals.pairs import CachedReranker
from evals.vectors import CachedEmbedder
from fakes_kb import HashEmbedder
from fakes_serve import FakeDenseLeg, FakeLeg, FakeReranker, hits_of, make_query
from kb.errors import StageUnavailable

TEXTS = [f"passage {number}" for number in range(70)]


def test_vectors_come_in_order_and_each_text_is_embedded_once(tmp_path: Path) -> None:
    embedder = HashEmbedder()
    cached = CachedEmbedder(embedder, tmp_path)

    first = cached.embed_passages(TEXTS[:40])
    again = CachedEmbedder(embedder, tmp_path).embed_passages([*TEXTS[::-1], TEXTS[0]])

    assert sorted(embedder.passages) == sorted(TEXTS)
    assert np.array_equal(first, HashEmbedder().embed_passages(TEXTS[:40]))
    assert np.array_equal(again, HashEmbedder().embed_passages([*TEXTS[::-1], TEXTS[0]]))


def test_what_was_embedded_before_a_failure_is_kept(tmp_path: Path) -> None:
    calls_of_a_batch = os.cpu_count() or 1
    failing = HashEmbedder(
        fail_on_call=calls_of_a_batch + 1, error=StageUnavailable("dense", "down")
    )
    with pytest.raises(StageUnavailable):
        CachedEmbedder(failing, tmp_path).embed_passages(TEXTS)

    after = HashEmbedder()
    CachedEmbedder(after, tmp_path).embed_passages(TEXTS)

    assert len(after.passages) <= len(TEXTS) - 32


def test_another_embedder_finds_nothing_of_the_first(tmp_path: Path) -> None:
    CachedEmbedder(HashEmbedder(name="one"), tmp_path).embed_passages(TEXTS[:3])
    other = HashEmbedder(name="other")

    CachedEmbedder(other, tmp_path).embed_passages(TEXTS[:3])

    assert sorted(other.passages) == TEXTS[:3]


def test_a_text_that_comes_twice_is_embedded_once_and_none_is_no_rows(tmp_path: Path) -> None:
    embedder = HashEmbedder()
    cached = CachedEmbedder(embedder, tmp_path)

    assert cached.embed_passages([]).shape == (0, 8)
    assert cached.embed_passages(["a", "b", "a"]).shape == (3, 8)
    assert sorted(embedder.passages) == ["a", "b"]


async def test_each_pair_is_scored_once_whatever_it_is_asked_with(tmp_path: Path) -> None:
    reranker = FakeReranker({"a": 3.0, "b": -2.0, "c": 0.5})
    await CachedReranker(reranker, tmp_path).rerank("q", ["a", "b"], "en", math.inf)
    reranker.asked.clear()

    scores = await CachedReranker(reranker, tmp_path).rerank("q", ["c", "a", "b"], "en", math.inf)

    assert scores.scores == (0.5, 3.0, -2.0)
    assert (scores.model_id, scores.complete) == ("fake-reranker", True)
    assert [passages for _, passages, _, _ in reranker.asked] == [("c",), ("c",)]


async def test_another_query_is_another_pair(tmp_path: Path) -> None:
    reranker = FakeReranker()
    cached = CachedReranker(reranker, tmp_path)
    await cached.rerank("q", ["a"], "en", math.inf)
    reranker.scores = {"a": 7.0}

    assert (await cached.rerank("other", ["a"], "en", math.inf)).scores == (7.0,)
    assert (await cached.rerank("q", ["a"], "en", math.inf)).scores == (-1.0,)


async def test_a_refusal_goes_on_and_is_not_kept(tmp_path: Path) -> None:
    reranker = FakeReranker(fault="raise")
    cached = CachedReranker(reranker, tmp_path)
    with pytest.raises(StageUnavailable):
        await cached.rerank("q", ["a"], "es", math.inf)
    reranker.fault = "ok"

    assert (await cached.rerank("q", ["a"], "es", math.inf)).scores == (-1.0,)


async def test_a_leg_is_asked_the_same_thing_once() -> None:
    leg = FakeLeg("bm25", hits_of("a:en:1"))
    remembered = RememberedLexical(leg)
    query = make_query("aspirin")

    first = await remembered.search(query)
    later = await remembered.search(replace(query, deadline=1.0))
    deeper = await remembered.search(replace(query, depth=7))

    assert first is later
    assert deeper.hits == first.hits
    assert len(leg.asked) == 2


async def test_a_sub_chunk_is_compared_with_a_query_once() -> None:
    leg = FakeDenseLeg(cosines={"a:en:1": 0.25, "b:en:1": None})
    remembered = RememberedDense(leg)
    vector = leg.query_vector
    assert vector is not None

    await remembered.similarities(vector, ["a:en:1"])

    assert await remembered.similarities(vector, ["b:en:1", "a:en:1"]) == [None, 0.25]
    assert leg.compared == [["a:en:1"], ["b:en:1"]]
