"""The shapes that every part shares, said once. Frozen; they cross process borders as they are."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""One embedding, shape (dimension,), L2-normalised."""

Matrix = NDArray[np.float32]
"""Embeddings, shape (rows, dimension), L2-normalised by row."""

EXACT_ROWS = 20_000
"""Up to this size of a vector space a search compares every row; above it, an index may guess."""

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
    asked_as: tuple[str, ...] = ()
    """Turns that this card answers, in users' words: it is found by them; nobody is shown them."""


@dataclass(frozen=True, slots=True)
class SubChunk:
    """What is indexed: a few sentences of one section of one card, or a turn that it answers."""

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
    shown: bool = True
    """False for a turn: it finds the card, and another sub-chunk is the passage."""

    @property
    def passage(self) -> str:
        """The text given to a model: title and section first, then the sentences; or the turn."""
        if not self.shown:
            return self.text
        heading = " - ".join(filter(None, (self.title, self.section)))
        return f"{heading}: {self.text}" if heading else self.text


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

    generation: str
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
class QueryVector:
    """A query in one vector space of a generation, to compare further sub-chunks with."""

    generation: str
    space: str
    vector: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The hits of one leg, best first.

    ``filtered_out`` counts what would have been a hit but for the filters. The dense leg adds the
    query's vector, so that hits of the other leg get a similarity without embedding again, and the
    spaces that it had to pass over: embedder and reason.
    """

    hits: tuple[Hit, ...]
    generation: str
    filtered_out: int = 0
    query_vector: QueryVector | None = field(default=None, repr=False, compare=False)
    passed_over: tuple[tuple[str, str], ...] = ()


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


@dataclass(frozen=True, slots=True)
class VectorSpace:
    """One embedder's vectors in a generation: of the sub-chunks in a language that it covers."""

    fingerprint: Fingerprint
    languages: tuple[str, ...]
    rows: int

    @property
    def name(self) -> str:
        """Name the space in a store: readable, and another for every other fingerprint.

        >>> VectorSpace(Fingerprint("BAAI/bge-small", "r1", 384, "", ""), (), 0).name
        'baai-bge-small-b1b5bd81'
        """
        readable = re.sub(r"[^a-z0-9]+", "-", self.fingerprint.embedder_id.lower()).strip("-")
        return f"{readable[:24]}-{hashlib.sha256(repr(self.fingerprint).encode()).hexdigest()[:8]}"

    def covers(self, locale: Locale) -> bool:
        """Tell whether its embedder was trained for a locale's language."""
        return not self.languages or locale.partition("-")[0] in self.languages
