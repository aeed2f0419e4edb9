"""The seams of the project: what a part must do to take another's place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from kb.types import Fingerprint, Hit, Matrix, Vector, VectorSpace


class Embedder(Protocol):
    """Turn text into L2-normalised vectors."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Identify the vectors that this embedder makes."""

    @property
    def languages(self) -> frozenset[str]:
        """Name the languages it was trained for; empty means any."""

    def embed_query(self, text: str) -> Vector:
        """Embed a query, shape (dimension,). Raises StageUnavailable when the vendor is down."""

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        """Embed passages, shape (len(texts), dimension), in the given order."""


class Documents(Protocol):
    """Keep small files by name: manifests, rows, and the pointer to what is served."""

    def get(self, name: str) -> bytes | None:
        """Read a document; None when there is none. Raises StoreError."""

    def put(self, name: str, data: bytes) -> None:
        """Write a document whole or not at all, over one of the same name. Raises StoreError."""

    def delete(self, name: str) -> None:
        """Delete a document, if it is there. Raises StoreError."""

    def names(self) -> list[str]:
        """Name every document, in ascending order. Raises StoreError."""


class VectorWriter(Protocol):
    """Fill a generation that nobody reads yet."""

    @property
    def copied(self) -> frozenset[str]:
        """Name the spaces that began as a copy of the base generation's."""

    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None:
        """Write vectors. Raises StoreError."""

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None:
        """Delete vectors; the ids are there. Raises StoreError."""

    def finish(self) -> dict[str, str]:
        """Make all of it durable and give its seals: what of it, and the sha256 of that."""


class VectorReader(Protocol):
    """Read one generation's vectors."""

    def count(self, space: str) -> int:
        """Count a space's rows. Raises StoreError."""

    def vectors(self, space: str, chunk_ids: Sequence[str]) -> Matrix:
        """Read vectors, shape (len(chunk_ids), dimension), in the given order. Raises StoreError
        when one is not there.
        """

    def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
        """Find the nearest rows by cosine similarity: score descending, then id ascending."""

    def close(self) -> None:
        """Let go of files and connections."""


class VectorStore(Protocol):
    """Hold the vectors of every generation, each apart from the others and never changed."""

    def create(
        self, generation: str, spaces: Sequence[VectorSpace], base: str | None
    ) -> VectorWriter:
        """Begin a generation, from a copy of ``base`` where the store copies cheaply.

        Raises:
            StoreError: it exists, or cannot be written.
        """

    def open(
        self,
        generation: str,
        spaces: Sequence[VectorSpace],
        seals: Mapping[str, str],
        *,
        thorough: bool = False,
    ) -> VectorReader:
        """Open a finished generation.

        Raises:
            StoreError: it is not there, or not what was sealed: another count, dimension, metric
                or content. Content is compared when it is small, or when ``thorough``.
        """

    def drop(self, generation: str) -> None:
        """Delete a generation, whatever there is of it. Raises StoreError."""

    def generations(self) -> list[str]:
        """Name every generation of which there is anything, in ascending order."""

    def announce(self, generation: str, spaces: Sequence[VectorSpace]) -> None:
        """Point the store's own names at the generation that is now served, if it has such."""


class PreparedPair(Protocol):
    """A query and a passage, tokenised for a cross-encoder."""

    @property
    def tokens(self) -> int:
        """Length of the model's input, the measure of its cost."""


Pair = TypeVar("Pair", bound=PreparedPair)


class PairModel(Protocol[Pair]):
    """A cross-encoder: score how well a passage answers a query."""

    @property
    def model_id(self) -> str:
        """Name the model as the catalogue does."""

    @property
    def languages(self) -> frozenset[str]:
        """Name the languages it was trained for; empty means any."""

    def prepare(self, query: str, passages: Sequence[str]) -> Iterator[Pair]:
        """Tokenise pair by pair, as they are asked for.

        The query is cut first, so that at least half of the window stays for the passage.
        """

    def score(self, pair: Pair) -> float:
        """Give the raw score (a logit, never a probability) of one pair."""
