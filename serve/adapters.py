"""Put the stages behind the pipeline's protocols, wherever they run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from kb.errors import StageUnavailable
from kb.types import LegQuery, QueryVector, Ranking, RerankScores
from serve.stages import StageStatus


class Caller(Protocol):
    """Call a method of a stage."""

    async def __call__(self, method: str, *args: Any) -> Any:
        """Give what the method returns. Raises StageUnavailable when the stage is not there."""

    async def everywhere(self, method: str, *args: Any) -> list[Any]:
        """Call every replica and give what they return. Raises StageUnavailable when none does."""


class LocalCaller:
    """Call a stage of this process, in a thread."""

    def __init__(self, stage: object) -> None:
        self._stage = stage

    async def __call__(self, method: str, *args: Any) -> Any:
        """Give what the method returns."""
        return await asyncio.to_thread(getattr(self._stage, method), *args)

    async def everywhere(self, method: str, *args: Any) -> list[Any]:
        """Give what the one stage returns."""
        return [await self(method, *args)]


class _Adapter:
    def __init__(self, call: Caller) -> None:
        self._call = call

    async def status(self) -> StageStatus:
        """Say how it is."""
        return StageStatus(ok=True, detail=await self._call("status"))

    async def _ask(self, method: str, *args: Any) -> Any:
        answer = await self._call(method, *args)
        if isinstance(answer, StageUnavailable):
            raise answer
        return answer


class LexicalAdapter(_Adapter):
    """The lexical leg."""

    async def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks. Raises StageUnavailable."""
        ranking: Ranking = await self._ask("search", query)
        return ranking

    async def load(self, generation: str) -> str:
        """Have every replica load a generation; give the reason when one cannot."""
        reasons = await self._call.everywhere("load", generation)
        return next(filter(None, reasons), "")


class DenseAdapter(LexicalAdapter):
    """The dense leg."""

    async def similarities(
        self, query: QueryVector, chunk_ids: Sequence[str]
    ) -> list[float | None]:
        """Compare sub-chunks with a query's vector. Raises StageUnavailable."""
        cosines: list[float | None] = await self._ask("similarities", query, chunk_ids)
        return cosines


class RerankAdapter(_Adapter):
    """The reranker."""

    async def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        """Score passages in order until the deadline. Raises StageUnavailable."""
        scores: RerankScores = await self._ask("rerank", query, passages, language, deadline)
        return scores
