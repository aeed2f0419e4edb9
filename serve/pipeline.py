"""From a query to cards: legs, fusion, rerank, parents, cut. The tiers are decided here alone."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kb.errors import StageUnavailable
from kb.generations import LoadedGeneration
from kb.types import Filters, LegQuery, Locale, Ranking, RerankScores, SubChunk
from serve.candidates import Candidate
from serve.fusion import FIRST_RANK, reciprocal_rank_fusion
from serve.languages import detect_locale, language_of, match_locale
from serve.parents import collapse_to_cards
from serve.schemas import (
    Bm25Evidence,
    Degradation,
    DenseEvidence,
    Evidence,
    HitBody,
    HybridPath,
    NoMatchReason,
    RerankBody,
    RetrieveRequest,
    RetrieveResponse,
    SourceBody,
)
from serve.settings import Settings
from serve.stages import Stages, StageStatus
from serve.telemetry import Telemetry

logger = logging.getLogger("ray.serve.adherence_retrieval")

_T = TypeVar("_T")

RESERVE_MS = 20.0
"""Kept of the deadline for the work after the last model: parents, cut and the answer itself."""
_RETURN_MS = 10.0
"""How much earlier than its waiter a reranker is told to stop, so that its scores still arrive."""
STATUS_TIMEOUT_S = 2.0
WARN_EVERY_S = 60.0


@dataclass(slots=True)
class _Request:
    """What one request gathers on its way."""

    body: RetrieveRequest
    settings: Settings
    locale: Locale
    deadline: float
    degraded: list[StageUnavailable] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)


def decide_path(
    bm25: Ranking | None, dense: Ranking | None, *, reranked: bool, found: bool
) -> HybridPath:
    """Name the path that an answer took.

    A ranking is None when its leg did not answer, or was not asked.
    """
    if not found:
        return "no_match"
    if dense is None:
        return "bm25_only"
    if bm25 is None:
        return "dense_only"
    return "full" if reranked else "rrf_only"


class HybridPipeline:
    """Answer requests from one generation, over stages that may fail one by one."""

    def __init__(
        self,
        stages: Stages,
        generation: LoadedGeneration,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.stages = stages
        self.generation = generation
        self._chunks: Mapping[str, SubChunk] = {chunk.id: chunk for chunk in generation.chunks}
        self._telemetry = telemetry
        self._clock = clock
        self._warned: dict[tuple[str, str], float] = {}

    def warm_up(self) -> None:
        """Load what the first request would else wait for."""
        detect_locale("How do I take this medicine?")

    async def retrieve(
        self, body: RetrieveRequest, settings: Settings, request_id: str
    ) -> RetrieveResponse:
        """Find the cards for a query. Never raises because a stage failed."""
        started = time.perf_counter()
        request = _Request(
            body,
            settings,
            locale=_locale_of(body),
            deadline=self._clock() + (body.deadline_ms or settings.deadline_ms) / 1000,
        )
        with self._telemetry.request_span() as span:
            bm25, dense = await self._search(request)
            candidates = self._fuse(request, bm25, dense)
            rerank: RerankBody | None = None
            if bm25 is not None and dense is not None:
                candidates, rerank = await self._compare(request, candidates, dense)
            with self._telemetry.stage("parents", request.timings_ms):
                hits, dropped = _cut(candidates, request)
            reranked = rerank is not None and rerank.scored > 0
            path = decide_path(bm25, dense, reranked=reranked, found=bool(hits))
            request.timings_ms["total"] = round((time.perf_counter() - started) * 1000, 2)
            span.set_attribute("agent.hybrid_path", path)
            span.set_attribute("retrieval.generation", self.generation.manifest.id)
            span.set_attribute("retrieval.hits", len(hits))
            span.set_attribute(
                "retrieval.degraded", [f"{d.stage}:{d.reason}" for d in request.degraded]
            )
        self._telemetry.metrics.request(path)
        return RetrieveResponse(
            hits=[_hit_body(rank, c, body.explain) for rank, c in enumerate(hits, FIRST_RANK)],
            hybrid_path=path,
            degraded=[Degradation(stage=d.stage, reason=d.reason) for d in request.degraded],
            no_match_reason=None if hits else self._no_match_reason(bm25, dense, dropped),
            locale=request.locale,
            generation=self.generation.manifest.id,
            rerank=rerank,
            timings_ms=request.timings_ms,
            request_id=request_id,
        )

    async def stage_statuses(self) -> dict[str, StageStatus]:
        """Ask every stage how it is, all at once; one that does not answer in time is not ok."""
        stages = self.stages
        names = ("bm25", "dense", "reranker")
        asked = (stages.bm25.status(), stages.dense.status(), stages.reranker.status())
        found = await asyncio.gather(*(_status(work) for work in asked))
        return dict(zip(names, found, strict=True))

    async def _search(self, request: _Request) -> tuple[Ranking | None, Ranking | None]:
        """Ask both legs at once; the lexical leg alone backs up a dense leg that runs alone."""
        if not self._chunks:
            return None, None
        hybrid = request.settings.retrieval_hybrid_enabled and request.body.hybrid
        query = self._leg_query(request)
        if hybrid:
            bm25, dense = await asyncio.gather(
                self._leg(request, "bm25", self.stages.bm25.search(query), query),
                self._leg(request, "dense", self.stages.dense.search(query), query),
            )
            return bm25, dense
        dense = await self._leg(request, "dense", self.stages.dense.search(query), query)
        if dense is not None:
            return None, dense
        query = self._leg_query(request)
        return await self._leg(request, "bm25", self.stages.bm25.search(query), query), None

    def _leg_query(self, request: _Request) -> LegQuery:
        settings, body = request.settings, request.body
        until = min(
            self._clock() + settings.leg_timeout_ms / 1000, request.deadline - RESERVE_MS / 1000
        )
        return LegQuery(
            text=body.query,
            locale=request.locale,
            depth=min(settings.candidate_multiplier * body.top_k, settings.candidate_max),
            min_cards=body.top_k,
            deadline=until,
            filters=Filters(
                frozenset(body.filters.category),
                frozenset(drug.lower() for drug in body.filters.drugs),
            ),
        )

    async def _leg(
        self, request: _Request, stage: str, search: Awaitable[Ranking], query: LegQuery
    ) -> Ranking | None:
        with self._telemetry.stage(stage, request.timings_ms):
            ranking = await self._attempt(request, stage, search, query.deadline)
        if ranking is not None and ranking.generation != self.generation.manifest.id:
            self._degrade(request, StageUnavailable(stage, "other_generation", ranking.generation))
            return None
        return ranking

    def _fuse(
        self, request: _Request, bm25: Ranking | None, dense: Ranking | None
    ) -> list[Candidate]:
        """Merge what the legs found; a leg that answered alone keeps its own order."""
        with self._telemetry.stage("fuse", request.timings_ms):
            bm25_scores = {hit.chunk_id: hit.score for hit in bm25.hits} if bm25 else {}
            similarities = {hit.chunk_id: hit.score for hit in dense.hits} if dense else {}
            if bm25 is None or dense is None:
                leg, only = ("dense", dense) if bm25 is None else ("bm25", bm25)
                return [
                    Candidate(
                        self._chunks[hit.chunk_id],
                        ranks={leg: rank},
                        bm25_score=bm25_scores.get(hit.chunk_id),
                        similarity=similarities.get(hit.chunk_id),
                    )
                    for rank, hit in enumerate(only.hits if only else (), FIRST_RANK)
                ]
            settings = request.settings
            fused = reciprocal_rank_fusion(
                {"bm25": list(bm25_scores), "dense": list(similarities)},
                {"bm25": settings.bm25_weight, "dense": settings.dense_weight},
                settings.rrf_k,
            )
            return [
                Candidate(
                    self._chunks[hit.chunk_id],
                    ranks=hit.ranks,
                    fused_score=hit.fused_score,
                    bm25_score=bm25_scores.get(hit.chunk_id),
                    similarity=similarities.get(hit.chunk_id),
                )
                for hit in fused
            ]

    async def _compare(
        self, request: _Request, candidates: list[Candidate], dense: Ranking
    ) -> tuple[list[Candidate], RerankBody | None]:
        """Rerank, and meanwhile compare what only the lexical leg found with the query's vector."""
        window = candidates[: request.settings.reranker_max_input]
        scores, similarities = await asyncio.gather(
            self._rerank(request, window), self._missing_similarities(request, candidates, dense)
        )
        candidates = [
            replace(c, similarity=similarities[c.chunk.id]) if c.chunk.id in similarities else c
            for c in candidates
        ]
        if scores is None:
            return candidates, None
        scored = [
            replace(candidate, rerank_score=score)
            for candidate, score in zip(candidates, scores.scores, strict=False)
        ]
        scored.sort(key=lambda c: (-(c.rerank_score or 0.0), c.chunk.id))
        body = RerankBody(model=scores.model_id, window=len(window), scored=len(scored))
        return scored + candidates[len(scored) :], body

    async def _rerank(self, request: _Request, window: Sequence[Candidate]) -> RerankScores | None:
        """Score the window; None, and the reason noted, when there is not one score to use."""
        if not (window and request.settings.rerank_enabled and request.body.rerank):
            return None
        with self._telemetry.stage("rerank", request.timings_ms):
            until = min(
                self._clock() + request.settings.rerank_budget_ms / 1000,
                request.deadline - RESERVE_MS / 1000,
            )
            asked = self.stages.reranker.rerank(
                request.body.query,
                [candidate.chunk.passage for candidate in window],
                language_of(request.locale),
                until - _RETURN_MS / 1000,
            )
            scores = await self._attempt(request, "rerank", asked, until)
        if scores is None:
            return None
        if problem := _broken(scores, len(window)):
            self._degrade(request, StageUnavailable("rerank", problem))
            return None
        return scores

    async def _missing_similarities(
        self, request: _Request, candidates: Sequence[Candidate], dense: Ranking
    ) -> dict[str, float]:
        missing = [c.chunk.id for c in candidates if c.similarity is None]
        if not missing or dense.query_vector is None:
            return {}
        asked = self.stages.dense.similarities(dense.query_vector, missing)
        until = request.deadline - RESERVE_MS / 1000
        found = await self._attempt(request, "dense", asked, until)
        return dict(zip(missing, found, strict=True)) if found else {}

    async def _attempt(
        self, request: _Request, stage: str, work: Awaitable[_T], until: float
    ) -> _T | None:
        """Await a stage until a moment; on any failure note the reason and give None."""
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())):
                return await work
        except TimeoutError:
            failure = StageUnavailable(stage, "timeout")
        except StageUnavailable as error:
            failure = error
        except Exception as error:  # A stage may fail in any way; the request may not.
            failure = StageUnavailable(stage, "failed", type(error).__name__)
        self._degrade(request, failure)
        return None

    def _degrade(self, request: _Request, failure: StageUnavailable) -> None:
        """Note a reason for the body, count it, and warn once a minute."""
        request.degraded.append(failure)
        self._telemetry.metrics.degraded(failure.stage, failure.reason)
        key, now = (failure.stage, failure.reason), self._clock()
        if now - self._warned.get(key, -math.inf) > WARN_EVERY_S:
            self._warned[key] = now
            logger.warning("degraded: %s", failure)

    def _no_match_reason(
        self, bm25: Ranking | None, dense: Ranking | None, dropped: int
    ) -> NoMatchReason:
        if not self._chunks:
            return "kb_empty"
        if dropped:
            return "below_min_similarity"
        if any(ranking and ranking.filtered_out for ranking in (bm25, dense)):
            return "filtered_out"
        return "no_candidates"


async def _status(work: Awaitable[StageStatus]) -> StageStatus:
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            return await work
    except TimeoutError:
        return StageStatus(ok=False, detail=f"no answer in {STATUS_TIMEOUT_S:g} s")
    except Exception as error:  # Whatever is wrong with a stage is what is asked here.
        return StageStatus(ok=False, detail=type(error).__name__)


def _locale_of(body: RetrieveRequest) -> Locale:
    named = match_locale(body.locale) if body.locale else None
    return named or detect_locale(body.query)


def _cut(candidates: list[Candidate], request: _Request) -> tuple[list[Candidate], int]:
    """Collapse to cards, then ``top_k``, then ``min_similarity``; tell how many it dropped."""
    cards = collapse_to_cards(candidates, request.locale)[: request.body.top_k]
    floor = request.body.min_similarity
    if floor is None:
        floor = request.settings.min_similarity
    if floor is None:
        return cards, 0
    # A similarity that could not be known is no reason to drop a hit.
    kept = [card for card in cards if card.similarity is None or card.similarity >= floor]
    return kept, len(cards) - len(kept)


def _broken(scores: RerankScores, window: int) -> str | None:
    if not scores.scores:
        return "deadline"
    if len(scores.scores) > window:
        return "broken_score"
    if not all(isinstance(s, float) and math.isfinite(s) for s in scores.scores):
        return "broken_score"
    return None


def _hit_body(rank: int, candidate: Candidate, explain: bool) -> HitBody:
    chunk = candidate.chunk
    score, kind = candidate.score()
    return HitBody(
        rank=rank,
        card_id=chunk.card_id,
        chunk_id=chunk.id,
        title=chunk.title,
        category=chunk.category,
        locale=chunk.locale,
        passage=chunk.text,
        score=score,
        score_kind=kind,
        similarity=candidate.similarity,
        sources=[SourceBody(name=s.name, url=s.url, licence=s.licence) for s in chunk.sources],
        evidence=_evidence(candidate) if explain else None,
    )


def _evidence(candidate: Candidate) -> Evidence:
    bm25 = dense = None
    if candidate.bm25_score is not None:
        bm25 = Bm25Evidence(rank=candidate.ranks["bm25"], score=candidate.bm25_score)
    if candidate.similarity is not None:
        dense = DenseEvidence(rank=candidate.ranks.get("dense"), similarity=candidate.similarity)
    return Evidence(
        bm25=bm25,
        dense=dense,
        fused_score=candidate.fused_score,
        rerank_score=candidate.rerank_score,
    )
