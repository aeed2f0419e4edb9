"""Stand-ins for the stages, models and stores of the service, each with a little behaviour."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import httpx
import numpy as np
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployments.engines.dense import DenseEngine, EmbedderPool
from kb.embedders.vectors import normalise
from kb.errors import ModelError, StageUnavailable
from kb.generations import LoadedGeneration, Manifest
from kb.types import (
    Fingerprint,
    Hit,
    LegQuery,
    Locale,
    Matrix,
    QueryVector,
    Ranking,
    RerankScores,
    Source,
    SubChunk,
    Vector,
    VectorSpace,
)
from serve.api import Backend, create_api
from serve.pipeline import HybridPipeline
from serve.schemas import RetrieveRequest, RetrieveResponse
from serve.settings import Settings
from serve.stages import Stages, StageStatus
from serve.telemetry import Metrics, NoMetrics, Telemetry

GENERATION = "2026-11-30T20-15-04-000000Z-1f3c9a"

QUERY = "can I take ibuprofen with warfarin?"

Fault = Literal["ok", "raise", "crash", "hang", "empty"]
"""``raise`` is a failure the stage announces, ``crash`` one that nobody foresaw."""


class FakeClock:
    """A clock that stands still until it is advanced."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def make_chunk(chunk_id: str, text: str = "", **rest: Any) -> SubChunk:
    """Make a sub-chunk; its card is what stands before the first colon of its id."""
    chunk = SubChunk(
        id=chunk_id,
        card_id=chunk_id.partition(":")[0],
        locale="en",
        ordinal=1,
        title="",
        category="drug-interaction",
        section="",
        text=text,
        sources=(Source("A label", "https://example.org/label", "CC0-1.0"),),
    )
    return replace(chunk, **rest)


def make_generation(
    chunks: Sequence[SubChunk], generation_id: str = GENERATION
) -> LoadedGeneration:
    manifest = Manifest(generation_id, "2026-11-30T20:15:04+00:00", len(chunks), "0" * 64)
    return LoadedGeneration(manifest, tuple(chunks))


def make_query(
    text: str = "", depth: int = 50, min_cards: int = 1, locale: Locale = "en", **rest: Any
) -> LegQuery:
    return LegQuery(GENERATION, text, locale, depth, min_cards, deadline=math.inf, **rest)


def hits_of(*chunk_ids: str) -> tuple[Hit, ...]:
    """Make hits in the given order, with scores that fall from 0.9."""
    return tuple(Hit(chunk_id, 0.9 - place / 100) for place, chunk_id in enumerate(chunk_ids))


class FakeEmbedder:
    """Know the vectors of a few queries by heart; they go through the real `normalise`.

    What it does not know lies between all axes.

    A ``fault`` is the reason with which it fails from then on.
    """

    def __init__(
        self,
        vectors: Mapping[str, Sequence[float]],
        dimension: int,
        languages: frozenset[str],
        name: str = "fake-embedder",
    ) -> None:
        self._vectors = vectors
        self.fingerprint = Fingerprint(name, "1", dimension, "", "")
        self.languages = languages
        self.fault = ""
        self.asked = 0

    def embed_query(self, text: str) -> Vector:
        self.asked += 1
        if self.fault:
            raise StageUnavailable("dense", self.fault)
        vector = self._vectors.get(text, [1.0] * self.fingerprint.dimension)
        return normalise(np.asarray(vector, dtype=np.float32))

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        return np.stack([self.embed_query(text) for text in texts])


class MemoryVectors:
    """Vectors by space and id; it counts its searches."""

    def __init__(self, spaces: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        self._spaces = {
            space: {chunk_id: np.asarray(row, dtype=np.float32) for chunk_id, row in rows.items()}
            for space, rows in spaces.items()
        }
        self.searches: list[int] = []
        self.closed = False

    def count(self, space: str) -> int:
        return len(self._spaces[space])

    def vectors(self, space: str, chunk_ids: Sequence[str]) -> Matrix:
        rows = [self._spaces[space][chunk_id] for chunk_id in chunk_ids]
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
        self.searches.append(depth)
        rows = self._spaces[space].items()
        hits = (Hit(chunk_id, float(row @ vector)) for chunk_id, row in rows)
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))[:depth]

    def close(self) -> None:
        self.closed = True


def make_dense(
    chunks: Sequence[SubChunk], *spaces: tuple[FakeEmbedder, Mapping[str, Sequence[float]]]
) -> tuple[DenseEngine, MemoryVectors]:
    """Put the real engine over vectors in memory: each space an embedder, and vectors by id."""
    made = [
        VectorSpace(embedder.fingerprint, tuple(sorted(embedder.languages)), len(vectors))
        for embedder, vectors in spaces
    ]
    reader = MemoryVectors(
        {space.name: vectors for space, (_, vectors) in zip(made, spaces, strict=True)}
    )
    embedders = {embedder.fingerprint: embedder for embedder, _ in spaces}

    def find(fingerprint: Fingerprint) -> FakeEmbedder:
        if embedders[fingerprint].fault == "absent":
            raise ModelError(f"{fingerprint} is not at hand")
        return embedders[fingerprint]

    loaded = make_generation(chunks)
    manifest = replace(loaded.manifest, spaces=tuple(made))
    pool = EmbedderPool(find)
    served = LoadedGeneration(manifest, loaded.chunks)
    return DenseEngine(served, reader, pool, clock=lambda: 0.0), reader


@dataclass
class FakeLeg:
    """A leg that finds what it was given, or fails as it was told.

    A ``generation`` of "any" answers from whichever it is asked for.
    """

    stage: str
    hits: Sequence[Hit] = ()
    fault: Fault = "ok"
    generation: str = GENERATION
    filtered_out: int = 0
    clock: FakeClock | None = None
    takes_s: float = 0.0
    query_vector: QueryVector | None = None
    passed_over: tuple[tuple[str, str], ...] = ()
    load_problem: str = ""
    loaded: list[str] = field(default_factory=list)
    asked: list[LegQuery] = field(default_factory=list)
    state: StageStatus = field(default_factory=lambda: StageStatus(ok=True, detail="fake"))

    async def search(self, query: LegQuery) -> Ranking:
        self.asked.append(query)
        if self.clock:
            self.clock.advance(self.takes_s)
        await fail(self.stage, self.fault, query.text)
        hits = () if self.fault == "empty" else tuple(self.hits)
        generation = query.generation if self.generation == "any" else self.generation
        return Ranking(hits, generation, self.filtered_out, self.query_vector, self.passed_over)

    async def load(self, generation: str) -> str:
        await fail(self.stage, self.fault, "")
        if not self.load_problem:
            self.loaded.append(generation)
        return self.load_problem

    async def status(self) -> StageStatus:
        await fail(self.stage, self.fault, "")
        return self.state


@dataclass
class FakeDenseLeg(FakeLeg):
    """A dense leg; it also knows the cosine of every sub-chunk that it is asked for by id."""

    stage: str = "dense"
    query_vector: QueryVector | None = field(
        default_factory=lambda: QueryVector(GENERATION, "space", np.ones(1, dtype=np.float32))
    )
    cosines: Mapping[str, float | None] = field(default_factory=dict)
    similarities_fault: Fault = "ok"
    compared: list[Sequence[str]] = field(default_factory=list)

    async def similarities(
        self, query: QueryVector, chunk_ids: Sequence[str]
    ) -> list[float | None]:
        assert query is self.query_vector
        self.compared.append(chunk_ids)
        await fail(self.stage, self.similarities_fault, "")
        if self.similarities_fault == "empty":
            return []
        return [self.cosines.get(chunk_id, 0.5) for chunk_id in chunk_ids]


@dataclass
class FakeReranker:
    """A reranker that gives the scores it was given by passage, or the raw ones whatever they are.

    ``scores`` maps passages to logits, and a passage it does not name gets -1. ``first`` bounds how
    many are scored, as a deadline would.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    fault: Fault = "ok"
    raw: Any = None
    first: int | None = None
    asked: list[tuple[str, tuple[str, ...], str, float]] = field(default_factory=list)
    state: StageStatus = field(default_factory=lambda: StageStatus(ok=True, detail="fake"))

    async def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        self.asked.append((query, tuple(passages), language, deadline))
        await fail("rerank", self.fault, query)
        if self.raw is not None:
            return RerankScores(self.raw, "fake-reranker", complete=True)
        found = [self.scores.get(passage, -1.0) for passage in passages][: self.first]
        scores = () if self.fault == "empty" else tuple(found)
        return RerankScores(scores, "fake-reranker", len(scores) == len(passages))

    async def status(self) -> StageStatus:
        await fail("rerank", self.fault, "")
        return self.state


async def fail(stage: str, fault: Fault, words: str) -> None:
    """Fail in the way of a fault; the unforeseen ones quote the words that they were working on."""
    if fault == "raise":
        raise StageUnavailable(stage, "down", "the stage said so")
    if fault == "crash":
        raise RuntimeError(f"cannot work on {words!r}")
    if fault == "hang":
        await asyncio.Event().wait()


class Spans:
    """A tracer whose finished spans can be looked at."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.all() if span.name == name]
        return span


CANONICAL: dict[str, Any] = {"rrf_k": 60, "bm25_weight": 1, "rerank_weight": 1}
"""Fusion as in its paper, and the reranker's order alone: figures that are worked out by hand."""


def make_settings(**values: Any) -> Settings:
    """Make settings whose stages are given up on soon, since fakes answer at once or never."""
    return Settings(**{"leg_timeout_ms": 20, "rerank_budget_ms": 20, **CANONICAL, **values})


CHUNKS = tuple(
    make_chunk(f"{card}:en:1", f"text of {card}", title=card.upper()) for card in "abcdef"
)


class BrokenMetrics(NoMetrics):
    """A fault of the service itself, in a stage or after all; it quotes what it should not."""

    def __init__(self, words: str, *, in_a_stage: bool = False) -> None:
        self._words = words
        self._in_a_stage = in_a_stage

    def request(self, path: str) -> None:
        raise RuntimeError(f"cannot count {path} of {self._words}")

    def stage(self, stage: str, milliseconds: float) -> None:
        if self._in_a_stage:
            raise RuntimeError(f"cannot count {milliseconds} of {stage} of {self._words}")


@dataclass
class World:
    """The real pipeline over fake stages, and all that a test may want to set or to look at.

    The lexical leg finds a and b, the dense leg b and c, and the reranker likes c best, then a.
    """

    chunks: Sequence[SubChunk] = CHUNKS
    bm25: FakeLeg = field(default_factory=lambda: FakeLeg("bm25", hits_of("a:en:1", "b:en:1")))
    dense: FakeDenseLeg = field(
        default_factory=lambda: FakeDenseLeg(hits=hits_of("b:en:1", "c:en:1"))
    )
    reranker: FakeReranker = field(
        default_factory=lambda: FakeReranker({"C: text of c": 2.0, "A: text of a": 1.0})
    )
    clock: FakeClock = field(default_factory=FakeClock)
    spans: Spans = field(default_factory=Spans)
    metrics: Metrics = field(default_factory=NoMetrics)

    @cached_property
    def pipeline(self) -> HybridPipeline:
        return HybridPipeline(
            Stages(self.bm25, self.dense, self.reranker),
            make_generation(self.chunks),
            Telemetry(self.metrics, self.spans.tracer),
            self.clock,
        )

    async def ask(self, settings: Settings | None = None, **body: Any) -> RetrieveResponse:
        request = RetrieveRequest(**{"query": QUERY, "locale": "en", **body})
        return await self.pipeline.retrieve(request, settings or make_settings(), "request-1")


def make_transport(world: World, settings: Settings | None = None) -> httpx.ASGITransport:
    """Put the real API over a world; what fails inside is answered, not raised."""
    backend = Backend(world.pipeline, lambda: settings or make_settings())
    return httpx.ASGITransport(create_api(backend), raise_app_exceptions=False)


def make_client(world: World, settings: Settings | None = None) -> httpx.AsyncClient:
    """Talk HTTP to the real API over a world."""
    transport = make_transport(world, settings)
    return httpx.AsyncClient(transport=transport, base_url="http://retrieval")


def cards_of(answer: RetrieveResponse) -> str:
    """Give the answer's cards, a letter each."""
    return "".join(hit.card_id for hit in answer.hits)


def degraded_of(answer: RetrieveResponse) -> set[tuple[str, str]]:
    return {(item.stage, item.reason) for item in answer.degraded}


def numbers_in(value: Any) -> Iterator[float]:
    """Walk a JSON value and give every number in it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)
