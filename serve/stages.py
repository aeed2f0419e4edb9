"""What the pipeline needs of its stages, whether they run here or on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kb.types import LegQuery, Ranking, RerankScores, Vector


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage's state: ``ok`` when it is there to answer, if only that it has no model."""

    ok: bool
    detail: str


class LexicalLeg(Protocol):
    """Rank by words."""

    async def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks. Raises StageUnavailable."""

    async def status(self) -> StageStatus:
        """Say how it is."""


class DenseLeg(Protocol):
    """Rank by meaning."""

    async def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks. Raises StageUnavailable."""

    async def similarities(self, vector: Vector, chunk_ids: Sequence[str]) -> list[float]:
        """Compare sub-chunks with a query's vector. Raises StageUnavailable."""

    async def status(self) -> StageStatus:
        """Say how it is."""


class RerankStage(Protocol):
    """Score query and passage together."""

    async def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        """Score passages in order until the deadline. Raises StageUnavailable."""

    async def status(self) -> StageStatus:
        """Say how it is."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The three stages that can fail on their own."""

    bm25: LexicalLeg
    dense: DenseLeg
    reranker: RerankStage
