"""The Bm25Retriever deployment: the lexical leg of one generation."""

from __future__ import annotations

from pathlib import Path

from deployments.engines.bm25 import Bm25Engine
from deployments.failures import failure_as_value, refuse_when_late
from kb.generations import load_rows
from kb.types import LegQuery, Ranking


class Bm25Retriever:
    """Build the index from the generation's rows and search it."""

    def __init__(self, kb_home: Path, generation: str) -> None:
        loaded = load_rows(kb_home, generation)
        self._engine = Bm25Engine(loaded.chunks, generation)
        self._rows = len(loaded.chunks)

    @failure_as_value
    def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks, or give the StageUnavailable."""
        refuse_when_late("bm25", query.deadline)
        return self._engine.search(query)

    def status(self) -> str:
        """Say what is indexed."""
        return f"{self._rows} sub-chunks"
