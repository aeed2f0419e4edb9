"""The Reranker deployment: a cross-encoder on CPU replicas that scale on their own."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.engines.cross_encoder import load_cross_encoder
from deployments.failures import failure_as_value
from kb.errors import StageUnavailable
from kb.models import ModelStore
from kb.types import RerankScores


class Reranker:
    """Load the first reranker of the preference that is there, or stand in for none."""

    def __init__(self, store: ModelStore, preference: Sequence[str], threads: int) -> None:
        self._engine = load_cross_encoder(store, preference, threads)

    @failure_as_value
    def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        """Score passages in order until the deadline, or give the StageUnavailable."""
        if self._engine is None:
            raise StageUnavailable("rerank", "no_model")
        return self._engine.rerank(query, passages, language, deadline)

    def status(self) -> str:
        """Name the model."""
        return self._engine.model.model_id if self._engine else "no model"
