"""What stands between a stage and the pipeline."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from deployments.failures import failure_as_value
from fakes_serve import GENERATION, hits_of, make_query
from kb.errors import StageUnavailable
from kb.types import LegQuery, QueryVector, Ranking, RerankScores
from serve.adapters import DenseAdapter, LexicalAdapter, LocalCaller, RerankAdapter
from serve.stages import StageStatus

RANKING = Ranking(hits_of("a:en:1"), GENERATION)


class FakeStage:
    """A stage as a replica runs it: failures that it foresees come back as values."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.threads: list[int] = []

    @failure_as_value
    def search(self, query: LegQuery) -> Ranking:
        self._work()
        assert query.text == "q"
        return RANKING

    @failure_as_value
    def similarities(self, query: QueryVector, chunk_ids: Sequence[str]) -> list[float | None]:
        self._work()
        return [float(query.vector[0])] * len(chunk_ids)

    @failure_as_value
    def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        self._work()
        assert (query, language, deadline) == ("q", "en", 5.0)
        return RerankScores((1.0,) * len(passages), "fake", complete=True)

    def status(self) -> str:
        return "six sub-chunks"

    def _work(self) -> None:
        self.threads.append(threading.get_ident())
        if self.failure:
            raise self.failure


def ask(stage: FakeStage) -> dict[str, Any]:
    """Make a call to each method of each adapter over a stage."""
    call = LocalCaller(stage)
    vector = QueryVector("g", "space", np.asarray([0.5], dtype=np.float32))
    return {
        "bm25": LexicalAdapter(call).search(make_query("q")),
        "dense": DenseAdapter(call).search(make_query("q")),
        "similarities": DenseAdapter(call).similarities(vector, ["a", "b"]),
        "rerank": RerankAdapter(call).rerank("q", ["p", "p"], "en", 5.0),
    }


async def test_an_adapter_gives_what_its_stage_gives() -> None:
    answers = {name: await call for name, call in ask(FakeStage()).items()}

    assert answers == {
        "bm25": RANKING,
        "dense": RANKING,
        "similarities": [0.5, 0.5],
        "rerank": RerankScores((1.0, 1.0), "fake", complete=True),
    }


async def test_a_failure_that_came_as_a_value_is_raised() -> None:
    failure = StageUnavailable("dense", "no_embedder", "why")

    for call in ask(FakeStage(failure)).values():
        with pytest.raises(StageUnavailable) as raised:
            await call
        assert raised.value is failure


async def test_a_failure_that_nobody_foresaw_is_raised_as_it_is() -> None:
    for call in ask(FakeStage(KeyError("gone"))).values():
        with pytest.raises(KeyError):
            await call


async def test_a_local_stage_works_in_a_thread_of_its_own() -> None:
    stage = FakeStage()

    for call in ask(stage).values():
        await call

    assert len(stage.threads) == 4
    assert threading.get_ident() not in stage.threads


async def test_a_stage_that_says_how_it_is_is_there() -> None:
    for adapter in (LexicalAdapter, DenseAdapter, RerankAdapter):
        status = await adapter(LocalCaller(FakeStage())).status()
        assert status == StageStatus(ok=True, detail="six sub-chunks")


def test_a_failure_as_a_value_crosses_processes_whole() -> None:
    value = FakeStage(StageUnavailable("rerank", "no_model", "why")).search(make_query("q"))

    copy = pickle.loads(pickle.dumps(value))  # noqa: S301 - as Ray does between its processes.

    assert isinstance(copy, StageUnavailable)
    assert (copy.stage, copy.reason, copy.detail) == ("rerank", "no_model", "why")


async def test_every_replica_is_asked_to_load_and_the_first_reason_is_told() -> None:
    class Loading:
        def load(self, generation: str) -> str:
            return "" if generation == "good" else f"{generation} is damaged"

    leg = LexicalAdapter(LocalCaller(Loading()))

    assert await leg.load("good") == ""
    assert await leg.load("bad") == "bad is damaged"
