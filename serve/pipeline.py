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
from serve.answers import hit_body
from serve.blending import blend, window_of
from serve.calibration import Calibration
from serve.candidates import Candidate
from serve.fusion import FIRST_RANK, fuse
from serve.languages import detect_locale, language_of, match_locale
from serve.parents import Leads, best_texts, collapse_to_cards, leads_of, text_of
from serve.schemas import (
    Degradation,
    HybridPath,
    NoMatchReason,
    RerankBody,
    RetrieveRequest,
    RetrieveResponse,
)
from serve.settings import Settings
from serve.stages import Stages
from serve.telemetry import Metrics, Telemetry

logger = logging.getLogger("ray.serve.adherence_retrieval")

_T = TypeVar("_T")

RESERVE_MS = 20.0
"""Kept of the deadline for the work after the last model: parents, cut and the answer itself."""
_RETURN_MS = 10.0
"""How much earlier than its waiter a reranker is told to stop, so that its scores still arrive."""
WARN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class _Served:
    """A generation, its sub-chunks by id, and the first of each card."""

    generation: LoadedGeneration
    chunks: Mapping[str, SubChunk]
    leads: Leads
    embedder_of: Mapping[str, str]
    """Embedder by the name of its space."""

    @property
    def id(self) -> str:
        return self.generation.manifest.id


@dataclass(slots=True)
class _Request:
    """What one request gathers on its way; it ends on the generation that it began on."""

    served: _Served
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
    """Answer each request from one generation, over stages that may fail one by one."""

    def __init__(
        self,
        stages: Stages,
        generation: LoadedGeneration,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
        calibration: Calibration | None = None,
    ) -> None:
        self.stages = stages
        self._calibration = calibration
        self.switch(generation)
        self._telemetry = telemetry
        self._clock = clock
        self._warned: dict[tuple[str, str], float] = {}

    @property
    def generation(self) -> LoadedGeneration:
        """Give the generation that the next request will be answered from."""
        return self._served.generation

    @property
    def metrics(self) -> Metrics:
        """Give what counts."""
        return self._telemetry.metrics

    def switch(self, generation: LoadedGeneration) -> None:
        """Answer from another generation from the next request on."""
        chunks = {chunk.id: chunk for chunk in generation.chunks}
        spaces = generation.manifest.spaces
        embedders = {space.name: space.fingerprint.embedder_id for space in spaces}
        self._served = _Served(generation, chunks, leads_of(generation.chunks), embedders)

    def warm_up(self) -> None:
        """Load what the first request would else wait for."""
        detect_locale("How do I take this medicine?")

    async def retrieve(
        self, body: RetrieveRequest, settings: Settings, request_id: str
    ) -> RetrieveResponse:
        """Find the cards for a query. Never raises because a stage failed."""
        started = time.perf_counter()
        request = _Request(
            self._served,
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
                hits, dropped = _cut(candidates, request, _floor(request, dense))
            if body.explain:
                hits = self._with_relevance(hits, dense, rerank)
            reranked = rerank is not None and rerank.scored > 0
            path = decide_path(bm25, dense, reranked=reranked, found=bool(hits))
            request.timings_ms["total"] = round((time.perf_counter() - started) * 1000, 2)
            span.set_attribute("agent.hybrid_path", path)
            span.set_attribute("retrieval.generation", request.served.id)
            span.set_attribute("retrieval.hits", len(hits))
            span.set_attribute(
                "retrieval.degraded", [f"{d.stage}:{d.reason}" for d in request.degraded]
            )
        self._telemetry.metrics.request(path)
        return RetrieveResponse(
            hits=[
                hit_body(rank, c, explain=body.explain) for rank, c in enumerate(hits, FIRST_RANK)
            ],
            hybrid_path=path,
            degraded=[Degradation(stage=d.stage, reason=d.reason) for d in request.degraded],
            no_match_reason=None if hits else _no_match_reason(request, bm25, dense, dropped),
            locale=request.locale,
            generation=request.served.id,
            rerank=rerank,
            timings_ms=request.timings_ms,
            request_id=request_id,
        )

    async def _search(self, request: _Request) -> tuple[Ranking | None, Ranking | None]:
        """Ask both legs at once; the lexical leg alone backs up a dense leg that runs alone."""
        if not request.served.chunks:
            return None, None
        query = self._leg_query(request)
        if request.settings.retrieval_hybrid_enabled and request.body.hybrid:
            return await self._both_legs(request, query)
        # Alone, the dense leg leaves the lexical leg time to take its place.
        until = min(self._clock() + request.settings.leg_timeout_ms / 1000, query.deadline)
        dense = await self._dense_leg(request, query, until)
        if dense is not None:
            return None, dense
        return await self._bm25_leg(request, query), None

    async def _both_legs(
        self, request: _Request, query: LegQuery
    ) -> tuple[Ranking | None, Ranking | None]:
        """Wait for both legs as long as a leg may take, and then on for the first that answers."""
        bm25 = asyncio.create_task(self._bm25_leg(request, query))
        dense = asyncio.create_task(self._dense_leg(request, query, query.deadline))
        done, late = await _wait(
            {bm25, dense}, asyncio.ALL_COMPLETED, request.settings.leg_timeout_ms / 1000
        )
        while late and all(leg.result() is None for leg in done):
            more, late = await _wait(late, asyncio.FIRST_COMPLETED)
            done |= more
        for leg, stage in ((bm25, "bm25"), (dense, "dense")):
            if leg in late:
                leg.cancel()
                self._degrade(request, StageUnavailable(stage, "timeout"))
        if late:  # Let them close their spans.
            await asyncio.wait(late, timeout=RESERVE_MS / 1000)
        return (
            bm25.result() if bm25 in done else None,
            dense.result() if dense in done else None,
        )

    def _leg_query(self, request: _Request) -> LegQuery:
        settings, body = request.settings, request.body
        return LegQuery(
            generation=request.served.id,
            text=body.query,
            locale=request.locale,
            depth=min(settings.candidate_multiplier * body.top_k, settings.candidate_max),
            min_cards=body.top_k,
            deadline=request.deadline - RESERVE_MS / 1000,
            filters=Filters(
                frozenset(body.filters.category),
                frozenset(drug.lower() for drug in body.filters.drugs),
            ),
        )

    async def _bm25_leg(self, request: _Request, query: LegQuery) -> Ranking | None:
        return await self._leg(
            request, "bm25", lambda: self.stages.bm25.search(query), query.deadline
        )

    async def _dense_leg(self, request: _Request, query: LegQuery, until: float) -> Ranking | None:
        return await self._leg(request, "dense", lambda: self.stages.dense.search(query), until)

    async def _leg(
        self, request: _Request, stage: str, search: Callable[[], Awaitable[Ranking]], until: float
    ) -> Ranking | None:
        with self._telemetry.stage(stage, request.timings_ms):
            ranking = await self._attempt(request, stage, search, until)
        if ranking is None:
            return None
        if ranking.generation != request.served.id:
            self._degrade(request, StageUnavailable(stage, "other_generation", ranking.generation))
            return None
        for embedder, reason in ranking.passed_over:
            self._degrade(request, StageUnavailable(stage, reason, embedder))
        known = request.served.chunks
        sound = tuple(h for h in ranking.hits if h.chunk_id in known and _is_number(h.score))
        if len(sound) < len(ranking.hits):
            self._degrade(request, StageUnavailable(stage, "broken_hits"))
        return replace(ranking, hits=sound)

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
                        request.served.chunks[hit.chunk_id],
                        ranks={leg: rank},
                        bm25_score=bm25_scores.get(hit.chunk_id),
                        similarity=similarities.get(hit.chunk_id),
                    )
                    for rank, hit in enumerate(only.hits if only else (), FIRST_RANK)
                ]
            settings = request.settings
            fused = fuse(
                {"bm25": bm25.hits, "dense": dense.hits},
                _weights(request, bm25, dense),
                settings.fusion,
                settings.rrf_k,
            )
            return [
                Candidate(
                    request.served.chunks[hit.chunk_id],
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
        window = window_of(candidates, request.settings.reranker_max_input)
        texts, leads = best_texts(candidates), request.served.leads
        passages = [text_of(candidate.chunk, texts, leads).passage for candidate in window]
        scores, similarities = await asyncio.gather(
            self._rerank(request, passages), self._missing_similarities(request, candidates, dense)
        )
        candidates = [
            replace(c, similarity=similarities[c.chunk.id]) if c.chunk.id in similarities else c
            for c in candidates
        ]
        if scores is None:
            return candidates, None
        score_of = {c.chunk.id: s for c, s in zip(window, scores.scores, strict=False)}
        scored = [
            replace(c, rerank_score=score_of[c.chunk.id])
            for c in candidates
            if c.chunk.id in score_of
        ]
        rest = [c for c in candidates if c.chunk.id not in score_of]
        body = RerankBody(model=scores.model_id, window=len(window), scored=len(scored))
        return blend(scored, request.settings.rerank_weight) + rest, body

    async def _rerank(self, request: _Request, passages: Sequence[str]) -> RerankScores | None:
        """Score passages; None, and the reason noted, when there is not one score to use."""
        if not (passages and request.settings.rerank_enabled and request.body.rerank):
            return None
        with self._telemetry.stage("rerank", request.timings_ms):
            until = min(
                self._clock() + request.settings.rerank_budget_ms / 1000,
                request.deadline - RESERVE_MS / 1000,
            )
            scores = await self._attempt(
                request,
                "rerank",
                lambda: self.stages.reranker.rerank(
                    request.body.query,
                    passages,
                    language_of(request.locale),
                    until - _RETURN_MS / 1000,
                ),
                until,
            )
        if scores is None:
            return None
        if problem := _broken(scores, len(passages)):
            self._degrade(request, StageUnavailable("rerank", problem))
            return None
        return scores

    def _with_relevance(
        self, hits: Sequence[Candidate], dense: Ranking | None, rerank: RerankBody | None
    ) -> list[Candidate]:
        if self._calibration is None:
            return list(hits)
        space = dense.query_vector.space if dense and dense.query_vector else None
        model = rerank.model if rerank else None
        relevance = self._calibration.relevance
        return [replace(hit, relevance=relevance(hit, space, model)) for hit in hits]

    async def _missing_similarities(
        self, request: _Request, candidates: Sequence[Candidate], dense: Ranking
    ) -> dict[str, float]:
        missing = [c.chunk.id for c in candidates if c.similarity is None]
        query = dense.query_vector
        if not missing or query is None:
            return {}
        found = await self._attempt(
            request,
            "dense",
            lambda: self.stages.dense.similarities(query, missing),
            request.deadline - RESERVE_MS / 1000,
        )
        if found is None or len(found) != len(missing):
            return {}
        return {
            chunk_id: similarity
            for chunk_id, similarity in zip(missing, found, strict=True)
            if similarity is not None and _is_number(similarity)
        }

    async def _attempt(
        self, request: _Request, stage: str, work: Callable[[], Awaitable[_T]], until: float
    ) -> _T | None:
        """Start a stage if there is time and await it; on any failure note why and give None."""
        try:
            if (left := until - self._clock()) <= 0:
                raise TimeoutError
            async with asyncio.timeout(left):
                answer = await work()
            if answer is None:
                raise StageUnavailable(stage, "failed", "it gave nothing")
            return answer
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


async def _wait(
    legs: set[asyncio.Task[_T]], until: str, timeout: float | None = None
) -> tuple[set[asyncio.Task[_T]], set[asyncio.Task[_T]]]:
    """Wait as `asyncio.wait` does; when the request itself is dropped, drop its legs too."""
    try:
        done, late = await asyncio.wait(legs, timeout=timeout, return_when=until)
    except asyncio.CancelledError:
        for leg in legs:
            leg.cancel()
        raise
    for leg in done:
        leg.exception()  # Seen: else asyncio logs, message and all, what nobody asks for later.
    return done, late


def _locale_of(body: RetrieveRequest) -> Locale:
    named = match_locale(body.locale) if body.locale else None
    return named or detect_locale(body.query)


def _weights(request: _Request, bm25: Ranking, dense: Ranking) -> dict[str, float]:
    """Weigh the legs for this query: by what embedded it, and by whether languages meet."""
    settings = request.settings
    own = [request.served.chunks[hit.chunk_id].locale == request.locale for hit in bm25.hits]
    share = sum(own) / len(own) if own else 1.0
    meeting = share + (1.0 - share) * settings.cross_language_bm25_weight
    by_embedder = settings.dense_weight_by_embedder.get(_embedder(request, dense), 1.0)
    return {
        "bm25": settings.bm25_weight * meeting,
        "dense": settings.dense_weight * by_embedder,
    }


def _embedder(request: _Request, dense: Ranking) -> str:
    """Name the embedder that a ranking's query vector is from."""
    vector = dense.query_vector
    return request.served.embedder_of.get(vector.space, "") if vector else ""


def _floor(request: _Request, dense: Ranking | None) -> float | None:
    """Find the similarity to ask of a hit: the request's, the setting, or the embedder's own."""
    for floor in (request.body.min_similarity, request.settings.min_similarity):
        if floor is not None:
            return floor
    if dense is None:
        return None
    return request.settings.min_similarity_by_embedder.get(_embedder(request, dense))


def _cut(
    candidates: list[Candidate], request: _Request, floor: float | None
) -> tuple[list[Candidate], int]:
    """Collapse to cards, then ``top_k``, then the floor; tell how many that dropped."""
    cards = collapse_to_cards(candidates, request.locale, request.served.leads)
    cards = cards[: request.body.top_k]
    if floor is None:
        return cards, 0
    # A similarity that could not be known is no reason to drop a hit.
    kept = [card for card in cards if card.similarity is None or card.similarity >= floor]
    return kept, len(cards) - len(kept)


def _no_match_reason(
    request: _Request, bm25: Ranking | None, dense: Ranking | None, dropped: int
) -> NoMatchReason:
    if not request.served.chunks:
        return "kb_empty"
    if dropped:
        return "below_min_similarity"
    if any(ranking and ranking.filtered_out for ranking in (bm25, dense)):
        return "filtered_out"
    return "no_candidates"


def _broken(scores: RerankScores, window: int) -> str | None:
    """Say what is wrong with scores; None when they can be used."""
    if not isinstance(scores, RerankScores):
        return "broken_score"
    if not scores.scores:
        return "deadline"
    whole = len(scores.scores) == window
    if len(scores.scores) > window or scores.complete != whole:
        return "broken_score"
    return None if all(map(_is_number, scores.scores)) else "broken_score"


def _is_number(score: object) -> bool:
    """Tell a finite float from all that a broken model may give instead (NaN breaks every sort)."""
    return isinstance(score, float) and math.isfinite(score)
