"""The dense leg: embed the query, find the nearest sub-chunks, in the first space that can."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from deployments.engines.breaker import Breaker
from deployments.engines.space_index import SpaceIndex
from kb.errors import ModelError, StageUnavailable
from kb.generations import LoadedGeneration
from kb.protocols import Embedder, VectorReader
from kb.types import Fingerprint, LegQuery, Locale, QueryVector, Ranking, Vector, VectorSpace

logger = logging.getLogger("ray.serve.adherence_retrieval")

_WARM_UP = "How do I take this medicine?"


class QueryEmbedder:
    """An embedder behind a circuit breaker, so that a dead vendor costs no request its time.

    Args:
        embedder: what makes the vectors.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.fingerprint = embedder.fingerprint
        self._embedder = embedder
        self._breaker = Breaker(self.fingerprint.embedder_id)

    def embed(self, text: str) -> Vector:
        """Embed a query, once. Raises StageUnavailable with the reason."""
        return self._breaker.call(lambda: self._embed(text))

    def _embed(self, text: str) -> Vector:
        vector = self._embedder.embed_query(text)
        if vector.shape != (dimension := self.fingerprint.dimension,):
            detail = f"the embedder gave shape {vector.shape}, not ({dimension},)"
            raise StageUnavailable("dense", "wrong_dimension", detail)
        return vector


class EmbedderPool:
    """Load each embedder once, for every generation that needs it.

    Args:
        make: makes the embedder of a fingerprint; raises ModelError when it is not at hand.
    """

    def __init__(self, make: Callable[[Fingerprint], Embedder]) -> None:
        self._make = make
        self._loaded: dict[Fingerprint, QueryEmbedder] = {}

    def get(self, fingerprint: Fingerprint) -> QueryEmbedder:
        """Give a warm embedder. Raises ModelError when it is not at hand."""
        if fingerprint not in self._loaded:
            embedder = QueryEmbedder(self._make(fingerprint))
            try:
                embedder.embed(_WARM_UP)
            except StageUnavailable as error:  # A vendor's API may be back later: keep it.
                logger.warning("%s is not warm: %s", fingerprint, error)
            self._loaded[fingerprint] = embedder
        return self._loaded[fingerprint]


@dataclass(frozen=True, slots=True)
class _ServedSpace:
    space: VectorSpace
    index: SpaceIndex
    embedder: QueryEmbedder | None
    problem: str = ""

    def __str__(self) -> str:
        problem = f" unavailable: {self.problem}" if self.problem else ""
        return f"{self.space.fingerprint}{problem}"


class QueryRewriter(Protocol):
    """Add to a query what an embedder may not know."""

    def with_names(self, text: str, locale: Locale) -> str:
        """Give the text to embed."""


class DenseEngine:
    """Search one generation's vector spaces, each with the embedder that made it.

    Args:
        loaded: the generation.
        reader: its vectors.
        embedders: where embedders come from; a space without its own is passed over.
        names: brings a drug's other names into a query, by locale; none leaves it as typed.
        clock: gives seconds since the epoch, as a query's deadline does.
    """

    def __init__(
        self,
        loaded: LoadedGeneration,
        reader: VectorReader,
        embedders: EmbedderPool,
        names: Mapping[Locale, QueryRewriter] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._names = names or {}
        self._clock = clock
        self._generation = loaded.manifest.id
        self._spaces = [
            _serve(space, _index(space, loaded, reader), embedders)
            for space in loaded.manifest.spaces
        ]

    @property
    def exact(self) -> bool:
        """Tell whether every space is in memory, so that the store is no longer needed."""
        return all(served.index.exact for served in self._spaces)

    def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks by cosine similarity, then by id.

        Raises:
            StageUnavailable: no space covers the query's language, or none that does can embed it.
        """
        if not self._spaces:
            raise StageUnavailable("dense", "no_embedder", "the generation has no vectors")
        rewriter = self._names.get(query.locale)
        text = rewriter.with_names(query.text, query.locale) if rewriter else query.text
        failures: dict[str, StageUnavailable] = {}
        for served in self._spaces:
            if not served.space.covers(query.locale):
                continue
            if self._clock() >= query.deadline:
                failures.setdefault("time", StageUnavailable("dense", "timeout", "no time left"))
                break
            try:
                vector = _embed(served, text)
            except StageUnavailable as failure:
                failures[served.space.fingerprint.embedder_id] = failure
                continue
            hits, filtered_out = served.index.search(vector, query)
            in_space = QueryVector(self._generation, served.space.name, vector)
            passed_over = tuple((name, failure.reason) for name, failure in failures.items())
            return Ranking(hits, self._generation, filtered_out, in_space, passed_over)
        if not failures:
            raise StageUnavailable("dense", "language_not_covered", f"no space for {query.locale}")
        detail = "; ".join(f"{name}: {f.reason} {f.detail}" for name, f in failures.items())
        raise StageUnavailable("dense", next(iter(failures.values())).reason, detail)

    def similarities(self, query: QueryVector, chunk_ids: Sequence[str]) -> list[float | None]:
        """Compare given sub-chunks with a query's vector; None for one outside its space."""
        served = next(s for s in self._spaces if s.space.name == query.space)
        return served.index.similarities(query.vector, chunk_ids)

    def status(self) -> str:
        """Name each space's embedder, or say why it has none."""
        return (
            "; ".join(
                f"{s.space.fingerprint} unavailable: {s.problem}"
                if s.problem
                else str(s.space.fingerprint)
                for s in self._spaces
            )
            or "no vectors: the generation was made without an embedder"
        )


def _index(space: VectorSpace, loaded: LoadedGeneration, reader: VectorReader) -> SpaceIndex:
    return SpaceIndex(space, loaded.chunks, reader, loaded.manifest.apart.get(space.name, ()))


def _serve(space: VectorSpace, index: SpaceIndex, embedders: EmbedderPool) -> _ServedSpace:
    try:
        return _ServedSpace(space, index, embedders.get(space.fingerprint))
    except ModelError as error:
        logger.warning("vector space %s is not served: %s", space.name, error)
        return _ServedSpace(space, index, None, str(error))


def _embed(served: _ServedSpace, text: str) -> Vector:
    if served.embedder is None:
        raise StageUnavailable("dense", "no_embedder", served.problem)
    return served.embedder.embed(text)
