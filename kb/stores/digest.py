"""Seal and compare the vectors of a store that can only be asked for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from kb.errors import StoreError
from kb.types import EXACT_ROWS, Hit, Matrix, VectorSpace

_PAGE: Final = 1000
_MARGIN: Final = 16


class _Writable(Protocol):
    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None: ...

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None: ...


class SealingWriter:
    """Fill a generation in a server, and seal what the server gives back.

    Args:
        vectors: writes.
        finish_space: makes a space ready to be read and gives its digest, by its name.
        spaces: the names of the spaces.
        copied: those that began as a copy of the base generation's.
    """

    def __init__(
        self,
        vectors: _Writable,
        finish_space: Callable[[str], str],
        spaces: Iterable[str],
        copied: frozenset[str] = frozenset(),
    ) -> None:
        self.copied = copied
        self._vectors = vectors
        self._finish_space = finish_space
        self._spaces = list(spaces)

    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None:
        """Write vectors. Raises StoreError."""
        self._vectors.upsert(space, chunk_ids, vectors)

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None:
        """Delete vectors. Raises StoreError."""
        self._vectors.delete(space, chunk_ids)

    def finish(self) -> dict[str, str]:
        """Seal what the server gives back. Raises StoreError."""
        return {space: self._finish_space(space) for space in self._spaces}


def digest_vectors(pages: Iterable[tuple[Sequence[str], Matrix]]) -> str:
    """Hash rows, which must come by id ascending: each id, then its vector's bytes.

    Args:
        pages: ids, and their vectors of shape (len(ids), dimension).
    """
    digest = hashlib.sha256()
    for ids, vectors in pages:
        for chunk_id, vector in zip(ids, vectors, strict=True):
            digest.update(chunk_id.encode() + b"\0" + vector.astype("<f4").tobytes())
    return digest.hexdigest()


def read_pages(
    chunk_ids: Iterable[str], read: Callable[[Sequence[str]], Matrix]
) -> Iterator[tuple[Sequence[str], Matrix]]:
    """Read vectors by id ascending, a page at a time."""
    ids = sorted(chunk_ids)
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        yield page, read(page)


def check_seal(
    where: str,
    space: VectorSpace,
    seals: Mapping[str, str],
    digest: Callable[[], str],
    *,
    thorough: bool,
) -> None:
    """Compare a space's content with its seal, when it is small or when ``thorough``.

    Raises:
        StoreError: there is no seal, or the content is not what was sealed.
    """
    if space.name not in seals:
        raise StoreError(f"{where}: {space.name} was never sealed; run `retrieval ingest`")
    if (thorough or space.rows <= EXACT_ROWS) and digest() != seals[space.name]:
        raise StoreError(
            f"{where}: the vectors of {space.name} are not what was sealed; run `retrieval ingest`"
        )


def nearest(search: Callable[[int], list[Hit]], depth: int) -> list[Hit]:
    """Find the best hits, ties by id, with an engine that breaks ties as it likes.

    Args:
        search: gives so many hits of the engine's, best first by score.
        depth: hits wanted.
    """
    asked = depth + _MARGIN
    while True:
        found = search(asked)
        # Rows as near as the last one wanted may be left: then the lowest ids are not known yet.
        if len(found) < asked or found[-1].score < found[depth - 1].score:
            return sorted(found, key=lambda hit: (-hit.score, hit.chunk_id))[:depth]
        asked *= 2
