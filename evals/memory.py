"""Ask a leg the same thing once: paths and settings differ in what they make of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kb.types import LegQuery, QueryVector, Ranking
from serve.stages import DenseLeg, LexicalLeg, StageStatus

_Similarities = list[float | None]


class RememberedLexical:
    """A lexical leg that remembers its rankings."""

    def __init__(self, leg: LexicalLeg) -> None:
        self._leg = leg
        self._rankings: dict[LegQuery, Ranking] = {}

    async def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks. Raises StageUnavailable."""
        key = replace(query, deadline=0.0)
        if key not in self._rankings:
            self._rankings[key] = await self._leg.search(query)
        return self._rankings[key]

    async def load(self, generation: str) -> str:
        """Have a generation at hand; give the reason when it cannot be loaded."""
        return await self._leg.load(generation)

    async def status(self) -> StageStatus:
        """Say how the leg is."""
        return await self._leg.status()


class RememberedDense(RememberedLexical):
    """A dense leg that remembers its rankings and comparisons."""

    def __init__(self, leg: DenseLeg) -> None:
        super().__init__(leg)
        self._dense = leg
        self._similarities: dict[tuple[bytes, str], float | None] = {}

    async def similarities(self, query: QueryVector, chunk_ids: Sequence[str]) -> _Similarities:
        """Compare sub-chunks with a query's vector. Raises StageUnavailable."""
        vector = query.vector.tobytes()
        missing = [i for i in chunk_ids if (vector, i) not in self._similarities]
        if missing:
            found = await self._dense.similarities(query, missing)
            keys = ((vector, chunk_id) for chunk_id in missing)
            self._similarities |= zip(keys, found, strict=True)
        return [self._similarities[vector, chunk_id] for chunk_id in chunk_ids]
