"""The Bm25Retriever deployment: the lexical leg."""

from __future__ import annotations

from deployments.engines.bm25 import Bm25Engine
from deployments.engines.generation_cache import GenerationCache
from deployments.failures import failure_as_value, refuse_when_late
from kb.analysis.lexical import LexicalConfig
from kb.stores.factory import StoreConfig, open_generations
from kb.types import LegQuery, Ranking


class Bm25Retriever:
    """Build an index from each generation's rows and search it."""

    def __init__(self, config: StoreConfig, lexical: LexicalConfig | None = None) -> None:
        self._lexical = lexical
        self._generations = open_generations(config)
        self._cache = GenerationCache("bm25", self._generations, self._build)
        self._cache.load_served()

    def load(self, generation: str) -> str:
        """Have a generation at hand; give the reason when it cannot be loaded."""
        return self._cache.load(generation)

    @failure_as_value
    def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks, or give the StageUnavailable."""
        refuse_when_late("bm25", query.deadline)
        return self._cache.get(query.generation).search(query)

    def status(self) -> str:
        """Say what is indexed."""
        generation, engine = self._cache.newest()
        return f"{engine.rows} sub-chunks of {generation}"

    def _build(self, generation: str) -> Bm25Engine:
        chunks = self._generations.load(generation).chunks
        return Bm25Engine(chunks, generation, self._lexical)
