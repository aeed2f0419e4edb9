"""The shapes that every part shares, said once. Frozen; they cross process borders as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""One embedding, shape (dimension,), L2-normalised."""

Matrix = NDArray[np.float32]
"""Embeddings, shape (rows, dimension), L2-normalised by row."""

Category = Literal[
    "drug-interaction", "adherence-barrier", "motivational-interviewing", "escalation"
]
Locale = Literal["en", "es-419", "pt-BR"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a card's claims come from; ``sections`` names the headings that it supports."""

    name: str
    url: str
    licence: str
    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of a card and the text below it."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Card:
    """A curated knowledge-base entry in one locale: the parent of its sub-chunks."""

    id: str
    title: str
    category: Category
    locale: Locale
    drugs: tuple[str, ...]
    sources: tuple[Source, ...]
    reviewed: str
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class SubChunk:
    """What is indexed: a few sentences of one section of one card."""

    id: str
    card_id: str
    locale: Locale
    ordinal: int
    title: str
    category: Category
    section: str
    text: str
    drugs: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def passage(self) -> str:
        """The text given to a model: title and section first, then the sentences."""
        heading = f"{self.title} - {self.section}" if self.section else self.title
        return f"{heading}: {self.text}"


@dataclass(frozen=True, slots=True)
class Filters:
    """Restrict both legs alike: within a field any value fits, all named fields must."""

    category: frozenset[str] = frozenset()
    drugs: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.category or self.drugs)

    def accept(self, chunk: SubChunk) -> bool:
        """Tell whether a sub-chunk passes."""
        return (not self.category or chunk.category in self.category) and (
            not self.drugs or not self.drugs.isdisjoint(chunk.drugs)
        )


@dataclass(frozen=True, slots=True)
class LegQuery:
    """What a leg is asked.

    ``depth`` hits are wanted, and more until ``min_cards`` distinct cards are among them, so that
    one long card cannot take every place. ``deadline`` is in seconds since the epoch.
    """

    text: str
    locale: Locale
    depth: int
    min_cards: int
    deadline: float
    filters: Filters = Filters()


@dataclass(frozen=True, slots=True)
class Hit:
    """A sub-chunk and its score, straight from one leg."""

    chunk_id: str
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The hits of one leg, best first.

    ``filtered_out`` counts what would have been a hit but for the filters. The dense leg adds the
    query's vector, so that hits of the other leg get a similarity without embedding again.
    """

    hits: tuple[Hit, ...]
    generation: str
    filtered_out: int = 0
    query_vector: Vector | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class RerankScores:
    """Raw scores of the first ``len(scores)`` passages; ``complete`` unless the deadline came."""

    scores: tuple[float, ...]
    model_id: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identify the embedder that made a set of vectors; vectors of unlike ones never meet."""

    embedder_id: str
    revision: str
    dimension: int
    query_prefix: str
    passage_prefix: str

    def __str__(self) -> str:
        return f"{self.embedder_id} ({self.dimension} dimensions, revision {self.revision})"
