"""The DenseRetriever deployment: query embedding and vector search."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.engines.dense import DenseEngine, EmbedderPool
from deployments.engines.generation_cache import GenerationCache
from deployments.failures import failure_as_value, refuse_when_late
from kb.analysis.lexical import LexicalConfig
from kb.embedders.factory import EmbedderConfig, embedder_of
from kb.stores.factory import StoreConfig, open_generations
from kb.types import LegQuery, QueryVector, Ranking


class DenseRetriever:
    """Load the embedders that made each generation's vectors and search with them.

    Without an embedder the replica still starts, and every search says why it cannot answer.
    """

    def __init__(
        self, store: StoreConfig, config: EmbedderConfig, lexical: LexicalConfig | None = None
    ) -> None:
        self._lexical = lexical or LexicalConfig()
        self._generations = open_generations(store)
        self._embedders = EmbedderPool(lambda fingerprint: embedder_of(fingerprint, config))
        self._cache = GenerationCache("dense", self._generations, self._build)
        self._cache.load_served()

    def load(self, generation: str) -> str:
        """Have a generation at hand; give the reason when it cannot be loaded."""
        return self._cache.load(generation)

    @failure_as_value
    def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks, or give the StageUnavailable."""
        refuse_when_late("dense", query.deadline)
        return self._cache.get(query.generation).search(query)

    @failure_as_value
    def similarities(self, query: QueryVector, chunk_ids: Sequence[str]) -> list[float | None]:
        """Compare sub-chunks with a query's vector, or give the StageUnavailable."""
        return self._cache.get(query.generation).similarities(query, chunk_ids)

    def status(self) -> str:
        """Name the embedders, or say why there is none."""
        return self._cache.newest()[1].status()

    def _build(self, generation: str) -> DenseEngine:
        loaded = self._generations.load(generation)
        reader = self._generations.open_vectors(loaded.manifest)
        names = self._lexical.expansions(loaded.chunks)
        engine = DenseEngine(loaded, reader, self._embedders, names)
        if engine.exact:
            reader.close()
        return engine
