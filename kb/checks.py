"""What a generation must pass before it is published."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kb.build import Written
from kb.canaries import Canary
from kb.errors import StageUnavailable, StoreError
from kb.progress import Progress
from kb.protocols import Embedder, VectorReader
from kb.types import EXACT_ROWS, SubChunk, Vector, VectorSpace

_SAMPLE = 200
_SEED = 20
_DEPTH = 10
_PAGE = 1024
_TOLERANCE = 1e-3
_LOST_AT_MOST = 10
CANARY_CARDS = 5
"""A canary's card must be among the first five."""


def check_rows(
    reader: VectorReader,
    space: VectorSpace,
    chunks: Sequence[SubChunk],
    written: Written,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Check that a space holds the rows it should, and that a search reaches them.

    Some vectors are compared with what the embedder made. A space that is searched row by row must
    give every row a vector of unit length. Where the store's index is asked, every written row is
    searched for by its own vector, with those that the base kept apart, and a seeded sample of the
    others: they were reachable in the generation before.

    Returns:
        the ids that the store's index does not reach, to be kept apart: a graph index loses a few
        rows that lie far from all others (HNSW: 2 of 100,000 here).

    Raises:
        StoreError: a count differs, a row is not found, or the index loses more than a few; the
            message names the row.
    """
    if (found := reader.count(space.name)) != space.rows:
        raise StoreError(
            f"{space.name}: wrote {space.rows} rows, the store holds {found}; nothing is published"
        )
    _check_samples(reader, space, written)
    covered = sorted(chunk.id for chunk in chunks if space.covers(chunk.locale))
    if space.rows <= EXACT_ROWS:
        _check_lengths(reader, space, covered)
        return ()
    others = sorted(set(covered) - set(written.ids))
    sample = random.Random(_SEED).sample(others, min(_SAMPLE, len(others)))  # noqa: S311
    looked_for = sorted({*written.ids, *sample, *(set(written.apart) & set(covered))})
    apart = tuple(_unreached(reader, space, looked_for, progress))
    if len(apart) > max(_LOST_AT_MOST, space.rows // 1000):
        raise _unreachable(space, apart[0])
    return apart


def _unreached(
    reader: VectorReader, space: VectorSpace, ids: Sequence[str], progress: Progress | None
) -> Iterator[str]:
    with ThreadPoolExecutor(os.cpu_count()) as searchers:
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            vectors = reader.vectors(space.name, page)
            reached = searchers.map(lambda i, v: _is_reached(reader, space, i, v), page, vectors)
            yield from (i for i, is_reached in zip(page, reached, strict=True) if not is_reached)
            if progress:
                progress("checking", start + len(page), len(ids))


def _check_samples(reader: VectorReader, space: VectorSpace, written: Written) -> None:
    ids = list(written.samples)
    for chunk_id, vector in zip(ids, reader.vectors(space.name, ids), strict=True):
        if not np.allclose(vector, written.samples[chunk_id], atol=_TOLERANCE):
            raise StoreError(
                f"{space.name}: the store gives another vector of {chunk_id} than it was given; "
                "nothing is published"
            )


def _check_lengths(reader: VectorReader, space: VectorSpace, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        lengths = np.linalg.norm(reader.vectors(space.name, page), axis=1)
        for chunk_id, length in zip(page, lengths, strict=True):
            if not abs(length - 1) < _TOLERANCE:  # NaN is not less, either.
                raise _unreachable(space, chunk_id)


def _is_reached(reader: VectorReader, space: VectorSpace, chunk_id: str, vector: Vector) -> bool:
    hits = reader.search(space.name, vector, _DEPTH)
    # Rows of the same text crowd each other out: then the last of them is as near.
    return any(hit.chunk_id == chunk_id for hit in hits) or (
        len(hits) == _DEPTH and hits[-1].score > 1 - _TOLERANCE
    )


def _unreachable(space: VectorSpace, chunk_id: str) -> StoreError:
    return StoreError(f"{space.name}: a search does not reach {chunk_id}; nothing is published")


def check_canaries(
    reader: VectorReader,
    space: VectorSpace,
    chunks: Sequence[SubChunk],
    embedder: Embedder,
    canaries: Sequence[Canary],
) -> None:
    """Check that each canary query of the space's languages finds its card.

    Raises:
        StoreError: one does not, or cannot be embedded; the message names its card.
    """
    card_of = {chunk.id: chunk.card_id for chunk in chunks if space.covers(chunk.locale)}
    for canary in canaries:
        if not space.covers(canary.locale):
            continue
        try:
            vector = embedder.embed_query(canary.query)
        except StageUnavailable as error:
            raise StoreError(f"{space.name}: cannot embed a canary: {error}") from error
        cards = list[str]()
        for hit in reader.search(space.name, vector, _SAMPLE):
            if (card_id := card_of[hit.chunk_id]) not in cards:
                cards.append(card_id)
        if canary.card_id not in cards[:CANARY_CARDS]:
            raise StoreError(
                f"{canary.where}: the query does not find {canary.card_id} among the first "
                f"{CANARY_CARDS} cards of {space.name}; nothing is published"
            )
