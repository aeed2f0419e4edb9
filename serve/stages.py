"""What the pipeline needs of its stages, whether they run here or on another machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kb.types import LegQuery, QueryVector, Ranking, RerankScores

STATUS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage's state: ``ok`` when it is there to answer, if only that it has no model."""

    ok: bool
    detail: str


class LexicalLeg(Protocol):
    """Rank by words."""

    async def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks. Raises StageUnavailable."""

    async def load(self, generation: str) -> str:
        """Have every replica load a generation; give the reason when one cannot.

        Raises:
            StageUnavailable: no replica answers.
        """

    async def status(self) -> StageStatus:
        """Say how it is."""


class DenseLeg(Protocol):
    """Rank by meaning."""

    async def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks. Raises StageUnavailable."""

    async def similarities(
        self, query: QueryVector, chunk_ids: Sequence[str]
    ) -> list[float | None]:
        """Compare sub-chunks with a query's vector; None for one outside its vector space.

        Raises:
            StageUnavailable: the stage cannot answer.
        """

    async def load(self, generation: str) -> str:
        """Have every replica load a generation; give the reason when one cannot.

        Raises:
            StageUnavailable: no replica answers.
        """

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

    async def statuses(self) -> dict[str, StageStatus]:
        """Ask every stage how it is, all at once; one that does not answer in time is not ok."""
        asked = {
            "bm25": self.bm25.status(),
            "dense": self.dense.status(),
            "reranker": self.reranker.status(),
        }
        found = await asyncio.gather(*map(_status, asked.values()))
        return dict(zip(asked, found, strict=True))


async def _status(asked: Awaitable[StageStatus]) -> StageStatus:
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            return await asked
    except TimeoutError:
        return StageStatus(ok=False, detail=f"no answer in {STATUS_TIMEOUT_S:g} s")
    except Exception as error:  # Whatever is wrong with a stage is what is asked here.
        return StageStatus(ok=False, detail=type(error).__name__)
