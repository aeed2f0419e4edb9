"""The dense leg: embed the query, find the nearest sub-chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from deployments.engines.selection import select_hits
from kb.embedders.factory import EmbedderConfig, embedder_of
from kb.errors import ModelError, StageUnavailable
from kb.generations import LoadedGeneration
from kb.protocols import Embedder, VectorStore
from kb.types import Hit, LegQuery, Matrix, Ranking, SubChunk, Vector

EXACT_ROWS = 20_000
"""Up to this size every row is compared; above it the store's approximate index is asked."""

_OVERFETCH = 4  # Filters and long cards thin out what an approximate search returns.
_DECIMALS = 6  # Matrix products differ in the last bits between machines; order must not.


class DenseEngine:
    """Search one generation's vectors with the embedder that made them."""

    def __init__(
        self, embedder: Embedder, chunks: Sequence[SubChunk], store: VectorStore, generation: str
    ) -> None:
        self.embedder = embedder
        self._chunks = sorted(chunks, key=lambda chunk: chunk.id)
        self._places = {chunk.id: place for place, chunk in enumerate(self._chunks)}
        self._store = store
        self._generation = generation
        self._check_dimension()
        exact = 0 < len(chunks) <= EXACT_ROWS
        self._matrix = store.vectors([chunk.id for chunk in self._chunks]) if exact else None

    def search(self, query: LegQuery) -> Ranking:
        """Rank sub-chunks by cosine similarity, then by id.

        Raises:
            StageUnavailable: the query cannot be embedded.
        """
        if not self._chunks:
            return Ranking((), self._generation)
        vector = self.embedder.embed_query(query.text)
        if vector.shape != (dimension := self.embedder.fingerprint.dimension,):
            detail = f"the embedder gave shape {vector.shape}, not ({dimension},)"
            raise StageUnavailable("dense", "wrong_dimension", detail)
        accepted = self._accepted(query)
        hits = select_hits(self._order(vector, accepted, query), query.depth, query.min_cards)
        filtered_out = len(self._chunks) - len(accepted) if accepted is not None else 0
        return Ranking(hits, self._generation, filtered_out, vector)

    def similarities(self, vector: Vector, chunk_ids: Sequence[str]) -> list[float]:
        """Compare given sub-chunks with a query's vector, in the given order."""
        if self._matrix is None:
            rows = self._store.vectors(chunk_ids)
        else:
            rows = self._matrix[[self._places[chunk_id] for chunk_id in chunk_ids]]
        return _cosines(rows, vector)

    def _check_dimension(self) -> None:
        """Compare one stored vector with the embedder. Raises ModelError naming both."""
        if not self._chunks:
            return
        found = self._store.vectors([self._chunks[0].id]).shape[1]
        if found != self.embedder.fingerprint.dimension:
            raise ModelError(
                f"the store's vectors have {found} dimensions, "
                f"the embedder is {self.embedder.fingerprint}"
            )

    def _accepted(self, query: LegQuery) -> frozenset[int] | None:
        """Give the places that pass the filters; None when there are no filters."""
        if not query.filters:
            return None
        return frozenset(
            place for place, chunk in enumerate(self._chunks) if query.filters.accept(chunk)
        )

    def _order(
        self, vector: Vector, accepted: frozenset[int] | None, query: LegQuery
    ) -> Iterator[tuple[Hit, str]]:
        if self._matrix is None:
            ranked = [
                (self._places[hit.chunk_id], hit.score)
                for hit in self._store.search(vector, query.depth * _OVERFETCH)
            ]
        else:
            scores = np.asarray(_cosines(self._matrix, vector))
            # Rows are in id order, so that a stable sort breaks ties by id.
            ranked = [(int(i), float(scores[i])) for i in np.argsort(-scores, kind="stable")]
        for place, score in ranked:
            if accepted is None or place in accepted:
                chunk = self._chunks[place]
                yield Hit(chunk.id, score), chunk.card_id


def load_dense(
    generation: LoadedGeneration, store: VectorStore, config: EmbedderConfig
) -> DenseEngine:
    """Load a generation's vectors and the embedder that made them.

    Raises:
        ModelError: the generation has no vectors, or their embedder is not at hand.
    """
    fingerprint = generation.manifest.fingerprint
    if fingerprint is None:
        raise ModelError(
            f"generation {generation.manifest.id} was made without an embedder; run "
            "`retrieval models pull`, then `retrieval ingest`"
        )
    embedder = embedder_of(fingerprint, config)
    return DenseEngine(embedder, generation.chunks, store, generation.manifest.id)


def _cosines(rows: Matrix, vector: Vector) -> list[float]:
    cosines: list[float] = np.round((rows @ vector).astype(np.float64), _DECIMALS).tolist()
    return cosines
