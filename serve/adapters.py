"""Put the stages behind the pipeline's protocols, wherever they run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from kb.errors import StageUnavailable
from kb.types import LegQuery, Ranking, RerankScores, Vector
from serve.stages import StageStatus


class Caller(Protocol):
    """Call a method of a stage."""

    async def __call__(self, method: str, *args: Any) -> Any:
        """Give what the method returns. Raises StageUnavailable when the stage is not there."""


class LocalCaller:
    """Call a stage of this process, in a thread."""

    def __init__(self, stage: object) -> None:
        self._stage = stage

    async def __call__(self, method: str, *args: Any) -> Any:
        """Give what the method returns."""
        return await asyncio.to_thread(getattr(self._stage, method), *args)


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


class DenseAdapter(LexicalAdapter):
    """The dense leg."""

    async def similarities(self, vector: Vector, chunk_ids: Sequence[str]) -> list[float]:
        """Compare sub-chunks with a query's vector. Raises StageUnavailable."""
        cosines: list[float] = await self._ask("similarities", vector, chunk_ids)
        return cosines


class RerankAdapter(_Adapter):
    """The reranker."""

    async def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        """Score passages in order until the deadline. Raises StageUnavailable."""
        scores: RerankScores = await self._ask("rerank", query, passages, language, deadline)
        return scores
