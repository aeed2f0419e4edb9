"""The seams of the project: what a part must do to take another's place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from kb.types import Fingerprint, Hit, Matrix, SubChunk, Vector


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


class VectorStore(Protocol):
    """Hold a generation's rows: one a sub-chunk, with its vector."""

    def upsert(self, chunks: Sequence[SubChunk], vectors: Matrix | None) -> None:
        """Write rows; ``vectors`` is None in a store without a vector space."""

    def count(self) -> int:
        """Count the rows."""

    def chunks(self) -> list[SubChunk]:
        """Read every row, by id ascending."""

    def vectors(self, chunk_ids: Sequence[str]) -> Matrix:
        """Read vectors, shape (len(chunk_ids), dimension), in the given order."""

    def search(self, vector: Vector, depth: int) -> list[Hit]:
        """Find the nearest rows by cosine similarity, best first (approximate)."""


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
