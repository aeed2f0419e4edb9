"""The same cards in four stores: the same questions find the same cards in the same order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from deployments.engines.dense import DenseEngine, EmbedderPool
from kb.cards import read_cards
from kb.embedders.factory import EmbedderConfig, embedder_of
from kb.generations import Generations, LoadedGeneration
from kb.ingest import ingest
from kb.models import ModelStore
from kb.protocols import Documents, Embedder, VectorReader, VectorStore
from kb.stores.chroma_server import open_chroma_server
from kb.stores.factory import StoreConfig, open_generations
from kb.stores.pgvector import open_pgvector
from kb.stores.qdrant import open_qdrant
from kb.types import Fingerprint, LegQuery, Locale, Matrix, Ranking, Vector, VectorSpace
from queries import QUERIES
from running_service import MODELS, ROOT
from store_servers import ChromaServer, PostgresServer

pytestmark = pytest.mark.integration

CARDS = ROOT / "kb/content"
DEPTH = 50


class ClosableStore(VectorStore, Protocol):
    """A store that holds connections."""

    def close(self) -> None:
        """Let go of them."""


class Recorded:
    """A real embedder that makes no vector twice: passages come from the shipped generation."""

    def __init__(self, embedder: Embedder, space: VectorSpace, passages: dict[str, Vector]) -> None:
        self.fingerprint: Fingerprint = space.fingerprint
        self.languages = frozenset(space.languages)
        self._embedder = embedder
        self._passages = passages
        self._queries: dict[str, Vector] = {}

    def embed_query(self, text: str) -> Vector:
        if text not in self._queries:
            self._queries[text] = self._embedder.embed_query(text)
        return self._queries[text]

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        return np.stack([self._passages[text] for text in texts])


@pytest.fixture(scope="module")
def shipped(shipped_kb: Path) -> tuple[Generations, LoadedGeneration]:
    """The shipped generation in the embedded store."""
    generations = open_generations(StoreConfig(shipped_kb))
    current = generations.current_id()
    assert current is not None
    return generations, generations.load(current)


@pytest.fixture(scope="module")
def embedders(shipped: tuple[Generations, LoadedGeneration]) -> list[Recorded]:
    """Both shipped embedders, with the shipped passages' vectors."""
    generations, loaded = shipped
    config = EmbedderConfig(ModelStore(MODELS), ())
    reader = generations.open_vectors(loaded.manifest)
    made = []
    for space in loaded.manifest.spaces:
        chunks = [chunk for chunk in loaded.chunks if space.covers(chunk.locale)]
        rows = reader.vectors(space.name, [chunk.id for chunk in chunks])
        passages = {chunk.passage: row for chunk, row in zip(chunks, rows, strict=True)}
        made.append(Recorded(embedder_of(space.fingerprint, config), space, passages))
    reader.close()
    return made


@pytest.fixture(scope="module")
def questions() -> list[tuple[Locale, str]]:
    """Two hundred: fifty turns, and the title of each card in its language."""
    turns: list[tuple[Locale, str]] = [("en", query) for query in QUERIES]
    turns += [(card.locale, card.title) for card in read_cards(CARDS)]
    asked = turns[:194] + [("es-419", "dolor de cabeza"), ("pt-BR", "dor de cabeça")] * 3
    assert len(asked) == 200
    return asked


@pytest.fixture(scope="module")
def chroma_url() -> Iterator[str]:
    server = ChromaServer()
    server.start()
    yield server.url
    server.remove()


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    server = PostgresServer()
    server.start()
    yield server.url
    server.remove()


@pytest.fixture(params=["chroma-server", "qdrant", "pgvector"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Generations]:
    """The shipped cards, ingested into another store than the embedded one."""
    opened: tuple[Documents, ClosableStore]
    if request.param == "chroma-server":
        opened = open_chroma_server(request.getfixturevalue("chroma_url"), "agree")
    elif request.param == "qdrant":
        opened = open_qdrant(":memory:", None, "agree")
    else:
        opened = open_pgvector(request.getfixturevalue("postgres_url"), "agree")
    documents, vectors = opened
    yield Generations(documents, vectors, tmp_path / "ingest.lock")
    vectors.close()


def test_two_hundred_questions_find_the_same_cards_in_the_same_order(
    shipped: tuple[Generations, LoadedGeneration],
    embedders: list[Recorded],
    questions: list[tuple[Locale, str]],
    other: Generations,
) -> None:
    report = ingest(CARDS, other, embedders)
    theirs = other.load(report.generation)
    assert theirs.chunks == shipped[1].chunks
    expected = _rankings(*shipped, embedders, questions)

    assert _rankings(other, theirs, embedders, questions) == expected
    reader = other.open_vectors(theirs.manifest)
    _check_own_search(reader, theirs, embedders, questions)
    reader.close()


def _rankings(
    generations: Generations,
    loaded: LoadedGeneration,
    embedders: list[Recorded],
    questions: list[tuple[Locale, str]],
) -> list[list[str]]:
    """Give the sub-chunks that the served engine finds for each question, best first."""
    by_fingerprint = {embedder.fingerprint: embedder for embedder in embedders}
    reader = generations.open_vectors(loaded.manifest)
    engine = DenseEngine(loaded, reader, EmbedderPool(by_fingerprint.__getitem__))
    reader.close()
    found = (_ask(engine, loaded.manifest.id, *question) for question in questions)
    return [[hit.chunk_id for hit in ranking.hits] for ranking in found]


def _ask(engine: DenseEngine, generation: str, locale: Locale, text: str) -> Ranking:
    return engine.search(LegQuery(generation, text, locale, DEPTH, 5, math.inf))


def _check_own_search(
    reader: VectorReader,
    loaded: LoadedGeneration,
    embedders: list[Recorded],
    questions: list[tuple[Locale, str]],
) -> None:
    """The store's own search agrees with comparing every row, as it will be asked above 20,000."""
    for space, embedder in zip(loaded.manifest.spaces, embedders, strict=True):
        ids = [chunk.id for chunk in loaded.chunks if space.covers(chunk.locale)]
        matrix = reader.vectors(space.name, ids)
        for _, text in questions[::10]:
            vector = embedder.embed_query(text)
            best = np.sort(matrix @ vector)[::-1][:10]
            scores = [hit.score for hit in reader.search(space.name, vector, 10)]
            np.testing.assert_allclose(scores, best, atol=1e-5)
