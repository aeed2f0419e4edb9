"""Ask a pipeline the queries of a collection."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from evals.workbench import Workbench
from kb.progress import Progress
from kb.types import Locale
from serve.schemas import HybridPath, RetrieveRequest, RetrieveResponse
from serve.settings import Settings

TOP_K = 10
_DEEP = 100


@dataclass
class PathRun:
    """What the queries gave by one path: card ids with scores that fall with the rank."""

    answers: dict[str, RetrieveResponse] = field(default_factory=dict)
    run: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)
    degraded: Counter[str] = field(default_factory=Counter)
    scored: float = 0.0
    """Candidates that the reranker scored, a query, in the mean."""


async def run_path(  # noqa: PLR0913, PLR0917  # What is asked of what, and how.
    workbench: Workbench,
    path: HybridPath,
    settings: Settings,
    queries: Mapping[str, str],
    locale: Locale | None,
    parents: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    *,
    deep: bool = False,
) -> PathRun:
    """Ask each query as an agent would, and gather what came.

    Args:
        workbench: the stages.
        path: the path to take.
        settings: those of the request.
        queries: by id.
        locale: named with every request; without one the service detects it.
        parents: gives what to count in place of a card id; without it the card itself.
        progress: told how many queries are answered.
        deep: also ask for a hundred cards without reranking, which the wire does not allow, for
            the recall that the legs have; they follow those of the first ten.
    """
    pipeline, settings = workbench.path(path, settings)
    found = PathRun()
    free = asyncio.Semaphore(os.cpu_count() or 1)

    async def ask(query_id: str, text: str) -> None:
        body = RetrieveRequest(query=text, top_k=TOP_K, locale=locale, explain=True)
        async with free:
            answer = await pipeline.retrieve(body, settings, query_id)
            cards = [hit.card_id for hit in answer.hits]
            if deep:
                wide = body.model_copy(update={"top_k": _DEEP, "rerank": False})
                deeper = await pipeline.retrieve(wide, settings, query_id)
                cards += [hit.card_id for hit in deeper.hits]
        found.answers[query_id] = answer
        units = dict.fromkeys(parents[card] if parents else card for card in cards)
        found.run[query_id] = [(unit, 1.0 / rank) for rank, unit in enumerate(units, 1)]
        found.taken[answer.hybrid_path] += 1
        found.degraded.update(f"{d.stage}:{d.reason}" for d in answer.degraded)
        found.scored += (answer.rerank.scored if answer.rerank else 0) / len(queries)
        if progress:
            progress(path, len(found.answers), len(queries))

    await asyncio.gather(*(ask(*query) for query in sorted(queries.items())))
    return found
