"""The reranker: score query and passage together, best candidates first, until time is up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Generic

from kb.errors import StageUnavailable
from kb.models import ModelSpec, ModelStore, find_spec
from kb.protocols import Pair, PairModel
from kb.types import RerankScores

logger = logging.getLogger("ray.serve.adherence_retrieval")

MAX_QUERY_TOKENS = 128
"""A longer turn is cut: each of its tokens is paid for again with every passage."""

_WARM_UP = ("How do I take this medicine?", "Take one tablet with water at the same time each day.")
# Weight of the newest pair in the running cost of a token. A cost falls to its true value at once
# and rises slowly: a moment's contention (a start-up, say) must not shrink the window for long.
_SHARE_DOWN = 0.5
_SHARE_UP = 0.1


class CrossEncoder(Generic[Pair]):
    """Rerank within a deadline.

    One pair is scored at a time: the score of a pair then never depends on its neighbours, and
    work stops at any pair. What a token costs is measured from the first pair on and kept current.
    """

    def __init__(self, model: PairModel[Pair], clock: Callable[[], float] = time.time) -> None:
        self.model = model
        self._clock = clock
        self._token_cost = 0.0  # Seconds.
        self._warm_up()

    def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        """Score the passages in order while the deadline (seconds since the epoch) allows.

        Raises:
            StageUnavailable: the model was not trained for the language.
        """
        if self.model.languages and language not in self.model.languages:
            raise StageUnavailable("rerank", "language_not_covered")
        scores: list[float] = []
        for pair in self.model.prepare(query, passages):
            # The first pair is tried whenever any time is left: it corrects a cost that was
            # measured in a slow moment, which would else keep every later request from starting.
            expected = self._token_cost * pair.tokens if scores else 0.0
            if self._clock() + expected >= deadline:
                break
            scores.append(self._score(pair))
        return RerankScores(tuple(scores), self.model.model_id, len(scores) == len(passages))

    def _score(self, pair: Pair) -> float:
        started = time.perf_counter()
        score = self.model.score(pair)
        cost = (time.perf_counter() - started) / pair.tokens
        share = _SHARE_DOWN if cost < self._token_cost else _SHARE_UP
        self._token_cost += share * (cost - self._token_cost)
        return score

    def _warm_up(self) -> None:
        costs = []
        for _ in range(3):  # The first run of a session also plans its memory.
            for pair in self.model.prepare(_WARM_UP[0], [_WARM_UP[1]]):
                started = time.perf_counter()
                self.model.score(pair)
                costs.append((time.perf_counter() - started) / pair.tokens)
        self._token_cost = min(costs)


def load_cross_encoder(
    store: ModelStore, preference: Sequence[str], threads: int = 1
) -> CrossEncoder | None:  # type: ignore[type-arg]  # Which pairs its model makes is its own affair.
    """Load the first model of the preference that is present and loads; None when none does.

    Whatever goes wrong (a missing file, no memory, no library) is one warning, never an error:
    the tier below answers.
    """
    problems: list[str] = []
    for model_id in preference:
        spec = find_spec(model_id)
        if not store.is_present(spec):
            continue
        try:
            engine = CrossEncoder(_load(spec, store, threads))
        except Exception as error:  # Any failure at all: see the docstring.
            problems.append(f"{model_id} cannot be loaded: {type(error).__name__}: {error}")
            continue
        if problems:
            logger.warning("reranker %s stands in: %s", model_id, "; ".join(problems))
        return engine
    absent = f"none of {', '.join(preference)} is in {store.home}"
    logger.warning("no reranker: %s", "; ".join(problems) or absent)
    return None


def _load(spec: ModelSpec, store: ModelStore, threads: int) -> PairModel:  # type: ignore[type-arg]
    if spec.runtime == "sentence_transformers":
        from deployments.engines.pair_sentence_transformers import SentenceTransformersPairModel

        return SentenceTransformersPairModel(spec, store.folder(spec), threads)
    from deployments.engines.pair_onnx import OnnxPairModel

    return OnnxPairModel(spec, store.folder(spec), threads)
