"""Search one vector space of one generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from deployments.engines.selection import select_hits
from kb.protocols import VectorReader
from kb.types import EXACT_ROWS, Hit, LegQuery, Matrix, SubChunk, Vector, VectorSpace
from kb.views import LOCALES, view_of

_OVERFETCH = 4  # Filters, locales and long cards thin out what an approximate search returns.
_DECIMALS = 6  # Matrix products differ in the last bits between machines; order must not.

_Mask = NDArray[np.bool_]


class SpaceIndex:
    """Compare queries with every row, up to `kb.types.EXACT_ROWS`; above, ask the store's index.

    Args:
        space: the space.
        chunks: the generation's rows.
        reader: the generation's vectors; kept only where the store's index is asked.
        apart: ids that the store's index does not reach; they are compared one by one.
    """

    def __init__(
        self,
        space: VectorSpace,
        chunks: Sequence[SubChunk],
        reader: VectorReader,
        apart: Sequence[str] = (),
    ) -> None:
        self._name = space.name
        covered = [chunk for chunk in chunks if space.covers(chunk.locale)]
        self._chunks = sorted(covered, key=lambda chunk: chunk.id)
        self._places = {chunk.id: place for place, chunk in enumerate(self._chunks)}
        self._views = {locale: self._mask(view_of(chunks, locale)) for locale in LOCALES}
        self._matrix: Matrix | None = None
        self._reader: VectorReader | None = None
        if len(self._chunks) <= EXACT_ROWS:
            self._matrix = reader.vectors(self._name, [chunk.id for chunk in self._chunks])
        else:
            self._reader = reader
        self._apart = list(apart)
        self._apart_rows = reader.vectors(self._name, self._apart) if self._apart else None

    @property
    def exact(self) -> bool:
        """Tell whether every row is compared."""
        return self._matrix is not None

    def search(self, vector: Vector, query: LegQuery) -> tuple[tuple[Hit, ...], int]:
        """Give the hits, by similarity, then by id, and how many rows the filters kept out."""
        view = self._views[query.locale]
        accepted = view
        if query.filters:
            accept = query.filters.accept
            accepted = view & np.fromiter(map(accept, self._chunks), np.bool_, len(self._chunks))
        filtered_out = int(view.sum() - accepted.sum())
        if not accepted.any():
            return (), filtered_out
        order = (
            self._exact(vector, accepted, self._matrix)
            if self._matrix is not None
            else self._approximate(vector, accepted, query)
        )
        return select_hits(order, query.depth, query.min_cards), filtered_out

    def similarities(self, vector: Vector, chunk_ids: Sequence[str]) -> list[float | None]:
        """Compare given sub-chunks with a query's vector; None for one that is not in the space."""
        known = [chunk_id for chunk_id in chunk_ids if chunk_id in self._places]
        if not known:
            return [None] * len(chunk_ids)
        if self._matrix is not None:
            rows: Matrix = self._matrix[[self._places[chunk_id] for chunk_id in known]]
        else:
            rows = self._store().vectors(self._name, known)
        found = dict(zip(known, cosines(rows, vector), strict=True))
        return [found.get(chunk_id) for chunk_id in chunk_ids]

    def _mask(self, ids: frozenset[str]) -> _Mask:
        return np.fromiter((c.id in ids for c in self._chunks), np.bool_, len(self._chunks))

    def _exact(self, vector: Vector, accepted: _Mask, matrix: Matrix) -> Iterator[tuple[Hit, str]]:
        scores = np.asarray(cosines(matrix, vector))
        # Rows are in id order, so that a stable sort breaks ties by id.
        for place in np.argsort(-scores, kind="stable"):
            if accepted[place]:
                chunk = self._chunks[place]
                yield Hit(chunk.id, float(scores[place])), chunk.card_id

    def _approximate(
        self, vector: Vector, accepted: _Mask, query: LegQuery
    ) -> Iterator[tuple[Hit, str]]:
        """Ask for more until enough of what comes is accepted, or there is no more."""
        asked, wanted = query.depth * _OVERFETCH, min(query.depth, int(accepted.sum()))
        apart = self._compare_apart(vector)
        while True:
            found = {h.chunk_id: h.score for h in self._store().search(self._name, vector, asked)}
            hits = [
                Hit(chunk_id, round(score, _DECIMALS))
                for chunk_id, score in (found | apart).items()
                if accepted[self._places[chunk_id]]
            ]
            if len(hits) >= wanted or asked >= len(self._chunks):
                break
            asked *= _OVERFETCH
        for hit in sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id)):
            yield hit, self._chunks[self._places[hit.chunk_id]].card_id

    def _compare_apart(self, vector: Vector) -> dict[str, float]:
        if self._apart_rows is None:
            return {}
        return dict(zip(self._apart, cosines(self._apart_rows, vector), strict=True))

    def _store(self) -> VectorReader:
        assert self._reader is not None  # noqa: S101  # There is a matrix or a reader.
        return self._reader


def cosines(rows: Matrix, vector: Vector) -> list[float]:
    """Compare unit vectors, shape (rows, dimension), with one; rounded, so that order is total."""
    result: list[float] = np.round((rows @ vector).astype(np.float64), _DECIMALS).tolist()
    return result
