"""The DenseRetriever deployment: query embedding and vector search of one generation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from deployments.engines.dense import DenseEngine, load_dense
from deployments.failures import failure_as_value, refuse_when_late
from kb.embedders.factory import EmbedderConfig
from kb.errors import StageUnavailable, WorkError
from kb.generations import load_generation
from kb.types import LegQuery, Ranking, Vector

logger = logging.getLogger("ray.serve.adherence_retrieval")

_WARM_UP = "How do I take this medicine?"


class DenseRetriever:
    """Load the embedder that made the generation's vectors and search with it.

    Without that embedder the replica still starts, and every search says why it cannot answer.
    """

    def __init__(self, kb_home: Path, generation: str, config: EmbedderConfig) -> None:
        loaded, store = load_generation(kb_home, generation)
        self._engine: DenseEngine | None = None
        self._problem = ""
        try:
            self._engine = load_dense(loaded, store, config)
            self._engine.embedder.embed_query(_WARM_UP)
        except StageUnavailable as error:  # A vendor's API may be back later: keep the engine.
            logger.warning("dense leg not warm: %s", error)
        except WorkError as error:
            self._problem = str(error)
            logger.warning("no dense leg: %s", error)

    @failure_as_value
    def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks, or give the StageUnavailable."""
        refuse_when_late("dense", query.deadline)
        return self._loaded().search(query)

    @failure_as_value
    def similarities(self, vector: Vector, chunk_ids: Sequence[str]) -> list[float]:
        """Compare sub-chunks with a query's vector, or give the StageUnavailable."""
        return self._loaded().similarities(vector, chunk_ids)

    def status(self) -> str:
        """Name the embedder, or say why there is none."""
        return str(self._engine.embedder.fingerprint) if self._engine else self._problem

    def _loaded(self) -> DenseEngine:
        if self._engine is None:
            raise StageUnavailable("dense", "no_embedder", self._problem)
        return self._engine
