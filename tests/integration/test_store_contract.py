"""What every store must do, asked of the real engines."""

from __future__ import annotations

import base64
import importlib
import itertools
import shutil
import socket
import sys
import threading
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from fakes_kb import HashEmbedder, write_card
from kb.errors import InputError, StoreError
from kb.generations import Generations
from kb.ingest import ingest
from kb.protocols import Documents, VectorReader, VectorStore
from kb.stores import chroma_server, pgvector, qdrant
from kb.stores.chroma_embedded import ChromaEmbeddedStore
from kb.stores.chroma_server import open_chroma_server
from kb.stores.folder import FolderDocuments
from kb.stores.pgvector import PgvectorStore, open_pgvector
from kb.stores.qdrant import open_qdrant
from kb.stores.records import engine_name
from kb.types import Fingerprint, Hit, Matrix, Vector, VectorSpace
from store_servers import ChromaServer, PostgresServer, free_port, scratch_folder

pytestmark = pytest.mark.integration

PASSWORD = "s3cret-pw"  # noqa: S105 - a fake one
_NUMBERS = itertools.count()


class Engine(Protocol):
    """One engine, and the ways to harm it that a test needs."""

    def open(self) -> tuple[Documents, VectorStore]:
        """Open it as another process would."""

    def leftovers(self) -> list[str]:
        """Name what is there beside the documents."""

    def tamper(self, generation: str, space: VectorSpace, chunk_id: str, vector: Vector) -> None:
        """Change one vector of a finished generation."""

    def change_metric(self, generation: str, space: VectorSpace) -> None:
        """Make a space compare otherwise than by cosine."""

    def close(self) -> None:
        """Delete it."""


class EmbeddedEngine:
    def __init__(self) -> None:
        self._home = scratch_folder("kb-")

    def open(self) -> tuple[Documents, VectorStore]:
        return FolderDocuments(self._home), ChromaEmbeddedStore(self._home)

    def leftovers(self) -> list[str]:
        return [path.name for path in self._home.glob("generations/*")]

    def tamper(self, generation: str, space: VectorSpace, chunk_id: str, vector: Vector) -> None:
        with self._client(generation) as client:
            client.get_collection(space.name, embedding_function=None).upsert(
                ids=[chunk_id], embeddings=vector[None, :]
            )

    def change_metric(self, generation: str, space: VectorSpace) -> None:
        with self._client(generation) as client:
            _use_squared_distance(client, space.name)

    def close(self) -> None:
        shutil.rmtree(self._home)

    @contextmanager
    def _client(self, generation: str) -> Iterator[Any]:
        import chromadb
        from chromadb.config import Settings

        client: Any = chromadb.PersistentClient(
            str(self._home / "generations" / generation / "chroma"),
            settings=Settings(anonymized_telemetry=False),
        )
        with closing(client):
            yield client


class _Remote(ABC):
    """An engine whose stores must be closed."""

    def __init__(self) -> None:
        self.namespace = f"test {next(_NUMBERS)}"
        self._stores: list[Any] = []

    @abstractmethod
    def open(self) -> tuple[Documents, VectorStore]:
        """Open it as another process would."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Name what is there beside the documents."""

    def _relation(self, generation: str, space: VectorSpace) -> str:
        return engine_name(self.namespace, generation, space.name)

    def _close_stores(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()


class ChromaServerEngine(_Remote):
    def __init__(self, server: ChromaServer) -> None:
        super().__init__()
        self._url = server.url

    def open(self) -> tuple[Documents, VectorStore]:
        documents, store = open_chroma_server(self._url, self.namespace)
        self._stores.append(store)
        return documents, store

    def leftovers(self) -> list[str]:
        names = [collection.name for collection in self._client.list_collections()]
        return _others(names, f"{self.namespace.replace(' ', '-')}-")

    def tamper(self, generation: str, space: VectorSpace, chunk_id: str, vector: Vector) -> None:
        self._client.get_collection(
            self._relation(generation, space), embedding_function=None
        ).upsert(ids=[chunk_id], embeddings=vector[None, :])

    def change_metric(self, generation: str, space: VectorSpace) -> None:
        _use_squared_distance(self._client, self._relation(generation, space))

    def close(self) -> None:
        self._close_stores()

    @property
    def _client(self) -> Any:
        return self._stores[-1]._client


class QdrantEngine(_Remote):
    def __init__(self) -> None:
        super().__init__()
        self._folder = scratch_folder("qdrant-")

    def open(self) -> tuple[Documents, VectorStore]:
        self._close_stores()  # One client alone holds the folder.
        documents, store = open_qdrant(f"path:{self._folder}", None, self.namespace)
        self._stores.append(store)
        return documents, store

    def leftovers(self) -> list[str]:
        names = [c.name for c in self._client.get_collections().collections]
        return [*_others(names, ""), *self.aliases()]

    def aliases(self) -> dict[str, str]:
        found = self._client.get_aliases().aliases
        return {alias.alias_name: alias.collection_name for alias in found}

    def tamper(self, generation: str, space: VectorSpace, chunk_id: str, vector: Vector) -> None:
        self._stores[-1]._engine.upsert(
            self._relation(generation, space), [chunk_id], [{"id": chunk_id}], [vector.tolist()]
        )

    def change_metric(self, generation: str, space: VectorSpace) -> None:
        from qdrant_client import models

        name = self._relation(generation, space)
        self._client.delete_collection(name)
        self._client.create_collection(
            name, models.VectorParams(size=space.fingerprint.dimension, distance="Euclid")
        )

    def close(self) -> None:
        self._close_stores()
        shutil.rmtree(self._folder)

    @property
    def _client(self) -> Any:
        return self._stores[-1]._engine._client


class PgvectorEngine(_Remote):
    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._url = server.url

    def open(self) -> tuple[Documents, PgvectorStore]:
        documents, store = open_pgvector(self._url, self.namespace)
        self._stores.append(store)
        return documents, store

    def leftovers(self) -> list[str]:
        prefix = f"kb_{self.namespace.replace(' ', '_')}_%"
        return [
            *(
                name
                for (name,) in self.query(
                    "select relname from pg_class where relname like %s", prefix
                )
            ),
            *(
                name
                for (name,) in self.query(
                    "select space from kb_spaces where namespace = %s", self.namespace
                )
            ),
        ]

    def tamper(self, generation: str, space: VectorSpace, chunk_id: str, vector: Vector) -> None:
        table = self.relation(generation, space)
        self.query(
            f'update "{table}" set embedding = %s where id = %s returning id',  # noqa: S608
            vector,
            chunk_id,
        )

    def change_metric(self, generation: str, space: VectorSpace) -> None:
        self.query(
            "update kb_spaces set metric = 'l2' where namespace = %s and generation = %s "
            "and space = %s returning space",
            self.namespace,
            generation,
            space.name,
        )

    def close(self) -> None:
        self._close_stores()

    def relation(self, generation: str, space: VectorSpace) -> str:
        return engine_name("kb", self.namespace, generation, space.name, separator="_")

    def query(self, query: Any, *values: object) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._stores[-1]._pool.rows("a test", query, values)
        return rows


def _use_squared_distance(client: Any, name: str) -> None:
    client.delete_collection(name)
    client.create_collection(name, configuration={"hnsw": {"space": "l2"}}, embedding_function=None)


def _others(names: Sequence[str], prefix: str) -> list[str]:
    return [name for name in names if name.startswith(prefix) and "-documents-" not in name]


@pytest.fixture(scope="module")
def chroma_child() -> Iterator[ChromaServer]:
    server = ChromaServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=["chroma", "chroma-server", "qdrant", "pgvector"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine
    if request.param == "chroma":
        made = EmbeddedEngine()
    elif request.param == "chroma-server":
        made = ChromaServerEngine(request.getfixturevalue("chroma_child"))
    elif request.param == "qdrant":
        made = QdrantEngine()
    else:
        made = PgvectorEngine(request.getfixturevalue("postgres"))
    yield made
    made.close()


@pytest.fixture
def pg(postgres: PostgresServer) -> Iterator[PgvectorEngine]:
    made = PgvectorEngine(postgres)
    yield made
    made.close()


@pytest.fixture
def documents(engine: Engine) -> Documents:
    return engine.open()[0]


@pytest.fixture
def store(engine: Engine) -> VectorStore:
    return engine.open()[1]


@dataclass(frozen=True)
class Rows:
    """The rows of a space, by id ascending."""

    space: VectorSpace
    ids: list[str]
    vectors: Matrix

    def nearest(self, vector: Vector, depth: int) -> list[str]:
        scores = np.round(self.vectors @ vector, 6)
        order = sorted(zip(-scores, self.ids, strict=True))
        return [chunk_id for _, chunk_id in order[:depth]]

    def part(self, start: int, stop: int) -> Rows:
        return rows_of(self.ids[start:stop], self.vectors[start:stop], self.space.fingerprint)


def rows_of(ids: Sequence[str], vectors: Matrix, fingerprint: Fingerprint | None = None) -> Rows:
    fingerprint = fingerprint or Fingerprint("hash", "r1", vectors.shape[1], "", "")
    return Rows(VectorSpace(fingerprint, (), len(ids)), list(ids), vectors)


def unit_vectors(count: int, dimension: int, seed: int) -> Matrix:
    vectors = np.random.default_rng(seed).normal(size=(count, dimension))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / lengths, dtype=np.float32)


def random_rows(count: int, dimension: int = 8, seed: int = 1) -> Rows:
    ids = [f"card-{number:05}:es-419:1" for number in range(count)]
    return rows_of(ids, unit_vectors(count, dimension, seed))


def build(store: VectorStore, generation: str, *contents: Rows) -> dict[str, str]:
    writer = store.create(generation, [rows.space for rows in contents], None)
    for rows in contents:
        if rows.ids:
            writer.upsert(rows.space.name, rows.ids, rows.vectors)
    return writer.finish()


@contextmanager
def built(store: VectorStore, *contents: Rows) -> Iterator[VectorReader]:
    seals = build(store, "g1", *contents)
    with closing(store.open("g1", [rows.space for rows in contents], seals)) as reader:
        yield reader


def ids_of(hits: Sequence[Hit]) -> list[str]:
    return [hit.chunk_id for hit in hits]


def assert_holds(reader: VectorReader, rows: Rows) -> None:
    assert reader.count(rows.space.name) == len(rows.ids)
    found = reader.vectors(rows.space.name, rows.ids)
    np.testing.assert_allclose(found, rows.vectors, atol=1e-6)


def refusal(error: pytest.ExceptionInfo[StoreError], *words: str) -> None:
    for word in words:
        assert word in str(error.value)


def test_a_document_is_read_back_overwritten_and_deleted(documents: Documents) -> None:
    assert documents.get("CURRENT") is None
    assert documents.names() == []
    documents.delete("CURRENT")

    documents.put("generations/b/manifest.json", b"two")
    documents.put("generations/a/rows.jsonl", b"\x00\xff")
    documents.put("CURRENT", b"one")
    documents.put("CURRENT", b"other")

    assert documents.get("CURRENT") == b"other"
    assert documents.get("generations/a/rows.jsonl") == b"\x00\xff"
    assert documents.names() == [
        "CURRENT",
        "generations/a/rows.jsonl",
        "generations/b/manifest.json",
    ]
    documents.delete("CURRENT")
    documents.delete("CURRENT")
    assert documents.get("CURRENT") is None
    assert documents.get("generations/b/manifest.json") == b"two"


def test_an_empty_document_is_a_document(documents: Documents) -> None:
    documents.put("CURRENT", b"")

    assert documents.get("CURRENT") == b""


def test_a_large_document_comes_back_whole_and_leaves_nothing(engine: Engine) -> None:
    documents, _ = engine.open()
    name = "generations/a/rows.jsonl"
    large = np.random.default_rng(3).bytes(3_000_000)
    documents.put(name, large)
    assert documents.get(name) == large
    assert engine.open()[0].get(name) == large

    documents, _ = engine.open()
    documents.put(name, b"small")
    assert documents.get(name) == b"small"
    documents.put(name, large[:2_000_000])
    documents.delete(name)
    assert documents.names() == []
    records = getattr(documents, "_records", None)
    if records is not None:
        assert records.keys("part") == []


def test_a_reader_sees_the_old_document_or_the_new_one(documents: Documents) -> None:
    name = "generations/a/rows.jsonl"
    versions = [bytes([65 + number]) * 1_500_000 for number in range(4)]
    documents.put(name, versions[0])
    done = threading.Event()

    def read() -> list[bytes | None]:
        seen = []
        while not done.is_set():
            seen.append(documents.get(name))
        return seen

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            for version in versions[1:]:
                documents.put(name, version)
        finally:
            done.set()
        seen = reading.result()

    assert seen
    assert all(data in versions for data in seen)


def test_vectors_come_back_in_the_order_asked_for(store: VectorStore) -> None:
    rows = random_rows(50)
    with built(store, rows) as reader:
        assert_holds(reader, rows)
        backwards = reader.vectors(rows.space.name, rows.ids[::-1])
        np.testing.assert_allclose(backwards, rows.vectors[::-1], atol=1e-6)
        assert backwards.dtype == np.float32
        assert len(reader.vectors(rows.space.name, [])) == 0
        with pytest.raises(StoreError, match="warfarin-nsaids:es-419:12"):
            reader.vectors(rows.space.name, [rows.ids[0], "warfarin-nsaids:es-419:12"])


@pytest.mark.parametrize("depth", [1, 10, 50, 1000])
def test_a_search_finds_what_brute_force_finds(store: VectorStore, depth: int) -> None:
    rows = random_rows(300, dimension=16)
    with built(store, rows) as reader:
        for query in unit_vectors(5, 16, seed=9):
            hits = reader.search(rows.space.name, query, depth)
            assert ids_of(hits) == rows.nearest(query, depth)
            assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))
            exact = dict(zip(rows.ids, rows.vectors @ query, strict=True))
            for hit in hits:
                assert hit.score == pytest.approx(exact[hit.chunk_id], abs=1e-5)


def test_rows_as_near_as_each_other_come_by_id_also_at_the_cut(store: VectorStore) -> None:
    rows = random_rows(200)
    rows.vectors[20:80] = rows.vectors[20]
    # Written in another order than that of their ids.
    shuffled = np.random.default_rng(5).permutation(200)
    writer = store.create("g1", [rows.space], None)
    writer.upsert(rows.space.name, [rows.ids[i] for i in shuffled], rows.vectors[shuffled])
    with closing(store.open("g1", [rows.space], writer.finish())) as reader:
        hits = reader.search(rows.space.name, rows.vectors[20], 10)

    assert ids_of(hits) == rows.ids[20:30]


def test_a_score_is_the_cosine(store: VectorStore) -> None:
    axis = np.zeros(8, np.float32)
    axis[0] = 1
    other = np.roll(axis, 1)
    rows = rows_of(["a:en:1", "b:en:1", "c:en:1"], np.stack([axis, other, -axis]))
    with built(store, rows) as reader:
        hits = reader.search(rows.space.name, axis, 3)

    assert ids_of(hits) == ["a:en:1", "b:en:1", "c:en:1"]
    assert [hit.score for hit in hits] == pytest.approx([1, 0, -1], abs=1e-5)


def test_rows_are_deleted_and_overwritten(store: VectorStore) -> None:
    rows = random_rows(20)
    other = unit_vectors(1, 8, seed=4)
    writer = store.create("g1", [rows.part(0, 15).space], None)
    writer.upsert(rows.space.name, rows.ids, rows.vectors)
    writer.delete(rows.space.name, rows.ids[15:])
    writer.upsert(rows.space.name, rows.ids[3:4], other)
    rows.vectors[3] = other
    wanted = rows.part(0, 15)

    with closing(store.open("g1", [wanted.space], writer.finish())) as reader:
        assert_holds(reader, wanted)
        assert ids_of(reader.search(rows.space.name, other[0], 1)) == [rows.ids[3]]
        assert not set(rows.ids[15:]) & set(ids_of(reader.search(rows.space.name, other[0], 50)))


def test_six_thousand_rows_are_written_in_one_call(store: VectorStore) -> None:
    rows = random_rows(6000)
    with built(store, rows) as reader:
        assert_holds(reader, rows)
        query = rows.vectors[5999]
        assert ids_of(reader.search(rows.space.name, query, 1)) == [rows.ids[5999]]


def test_an_empty_space_and_a_generation_without_spaces_work(store: VectorStore) -> None:
    empty = random_rows(0)
    with built(store, empty) as reader:
        assert reader.count(empty.space.name) == 0
        assert reader.search(empty.space.name, unit_vectors(1, 8, seed=1)[0], 5) == []
    seals = store.create("g2", [], None).finish()
    store.open("g2", [], seals).close()

    assert store.generations() == ["g1", "g2"]
    store.drop("g2")
    assert store.generations() == ["g1"]


def test_two_spaces_of_other_dimensions_do_not_meet(store: VectorStore) -> None:
    narrow, wide = random_rows(10, dimension=8), random_rows(12, dimension=16)
    with built(store, narrow, wide) as reader:
        assert_holds(reader, narrow)
        assert_holds(reader, wide)
        assert ids_of(reader.search(wide.space.name, wide.vectors[11], 1)) == [wide.ids[11]]


def test_two_generations_do_not_see_each_other(store: VectorStore) -> None:
    one, other = random_rows(10, seed=1), random_rows(12, seed=2)
    seals = build(store, "g1", one)
    other_seals = build(store, "g2", other)

    with (
        closing(store.open("g1", [one.space], seals)) as reader,
        closing(store.open("g2", [other.space], other_seals)) as second,
    ):
        assert_holds(reader, one)
        assert_holds(second, other)
    with pytest.raises(StoreError):
        store.create("g1", [one.space], None)
    assert store.generations() == ["g1", "g2"]


@pytest.mark.parametrize("engine", ["chroma-server", "qdrant", "pgvector"], indirect=True)
def test_two_namespaces_do_not_see_each_other(engine: _Remote) -> None:
    documents, store = engine.open()
    documents.put("CURRENT", b"g1")
    rows = random_rows(3)
    build(store, "g1", rows)
    store.announce("g1", [rows.space])
    engine.namespace += " other"
    documents, store = engine.open()

    assert documents.get("CURRENT") is None
    assert documents.names() == []
    assert store.generations() == []
    store.announce("g1", [])
    store.drop("g1")
    engine.namespace = engine.namespace.removesuffix(" other")
    documents, store = engine.open()
    assert documents.get("CURRENT") == b"g1"
    assert store.generations() == ["g1"]
    assert engine.leftovers()


def test_a_generation_from_a_base_holds_just_what_is_wanted(store: VectorStore) -> None:
    before = random_rows(30)
    seals = build(store, "g1", before)
    changed = unit_vectors(30, 8, seed=6)
    changed[:20] = before.vectors[:20]
    wanted = rows_of(before.ids[5:25], changed[5:25])

    writer = store.create("g2", [wanted.space], "g1")
    if wanted.space.name in writer.copied:
        writer.delete(wanted.space.name, [*before.ids[:5], *before.ids[20:]])
        writer.upsert(wanted.space.name, wanted.ids[15:], wanted.vectors[15:])
    else:
        writer.upsert(wanted.space.name, wanted.ids, wanted.vectors)
    new_seals = writer.finish()

    with closing(store.open("g2", [wanted.space], new_seals, thorough=True)) as reader:
        assert_holds(reader, wanted)
    with closing(store.open("g1", [before.space], seals, thorough=True)) as reader:
        assert_holds(reader, before)


def test_a_base_without_the_space_gives_no_copy(store: VectorStore) -> None:
    before, wanted = random_rows(5, dimension=8), random_rows(5, dimension=16)
    build(store, "g1", before)
    writer = store.create("g2", [wanted.space], "g1")
    assert writer.copied == frozenset()
    writer.upsert(wanted.space.name, wanted.ids, wanted.vectors)

    with closing(store.open("g2", [wanted.space], writer.finish())) as reader:
        assert_holds(reader, wanted)


def test_another_dimension_or_fingerprint_is_refused_with_both_named(store: VectorStore) -> None:
    rows = random_rows(5)
    seals = build(store, "g1", rows)
    for fingerprint in (
        Fingerprint("hash", "r1", 16, "", ""),
        Fingerprint("hash", "r2", 8, "", ""),
        Fingerprint("other", "r1", 8, "", ""),
    ):
        space = VectorSpace(fingerprint, (), 5)
        with pytest.raises(StoreError) as error:
            store.open("g1", [space], seals)
        refusal(error, "hash", str(fingerprint)[:-1])


def test_another_number_of_rows_is_refused(store: VectorStore) -> None:
    rows = random_rows(5)
    seals = build(store, "g1", rows)
    with pytest.raises(StoreError) as error:
        store.open("g1", [VectorSpace(rows.space.fingerprint, (), 6)], seals)
    refusal(error, "5", "6")


def test_a_tampered_vector_is_refused(engine: Engine, store: VectorStore) -> None:
    rows = random_rows(5)
    seals = build(store, "g1", rows)
    engine.tamper("g1", rows.space, rows.ids[2], rows.vectors[3])
    with pytest.raises(StoreError):
        store.open("g1", [rows.space], seals)


def test_another_metric_is_refused(engine: Engine, store: VectorStore) -> None:
    rows = random_rows(0)
    seals = build(store, "g1", rows)
    engine.change_metric("g1", rows.space)
    with pytest.raises(StoreError):
        store.open("g1", [rows.space], seals)


def test_a_missing_space_generation_or_seal_is_refused(store: VectorStore) -> None:
    rows = random_rows(5)
    seals = build(store, "g1", rows)
    missing = VectorSpace(Fingerprint("missing", "r1", 8, "", ""), (), 5)
    with pytest.raises(StoreError):
        store.open("g1", [rows.space, missing], seals)
    with pytest.raises(StoreError):
        store.open("g2", [rows.space], seals)
    with pytest.raises(StoreError):
        store.open("g1", [rows.space], {})


def test_dropping_leaves_nothing_and_may_be_done_twice(engine: Engine) -> None:
    _, store = engine.open()
    rows = random_rows(5)
    build(store, "g1", rows, random_rows(5, dimension=16))
    store.announce("g1", [rows.space])
    assert engine.leftovers()

    store.drop("g1")
    store.drop("g1")
    store.drop("never-there")

    assert store.generations() == []
    assert engine.leftovers() == []


def test_an_unfinished_generation_is_listed_and_can_be_dropped(engine: Engine) -> None:
    _, store = engine.open()
    rows = random_rows(5)
    store.create("g1", [rows.space], None).upsert(rows.space.name, rows.ids, rows.vectors)

    _, fresh = engine.open()
    assert fresh.generations() == ["g1"]
    fresh.drop("g1")
    assert fresh.generations() == []
    assert engine.leftovers() == []


def test_announcing_twice_is_announcing_once(store: VectorStore) -> None:
    rows = random_rows(5)
    seals = build(store, "g1", rows)
    store.announce("g1", [rows.space])
    store.announce("g1", [rows.space])
    with closing(store.open("g1", [rows.space], seals)) as reader:
        assert_holds(reader, rows)


def test_searches_side_by_side_give_what_they_give_one_by_one(store: VectorStore) -> None:
    rows = random_rows(200)
    queries = unit_vectors(32, 8, seed=7)
    with built(store, rows) as reader:

        def search(query: Vector) -> list[Hit]:
            return reader.search(rows.space.name, query, 10)

        one_by_one = [search(query) for query in queries]
        with ThreadPoolExecutor(8) as pool:
            side_by_side = list(pool.map(search, queries))

    assert side_by_side == one_by_one


# End to end.


def knowledge_base(engine: Engine, folder: Path) -> Generations:
    return Generations(*engine.open(), folder / "ingest.lock")


def embedders() -> list[HashEmbedder]:
    return [HashEmbedder(8), HashEmbedder(16, "other")]


def write_cards(folder: Path) -> Path:
    for number in range(5):
        write_card(folder, f"card-{number}", f"Take dose {number} with food.")
    return folder


def test_cards_are_ingested_changed_rolled_back_and_pruned(engine: Engine, tmp_path: Path) -> None:
    cards = write_cards(tmp_path / "cards")
    first = ingest(cards, knowledge_base(engine, tmp_path), embedders())
    assert (first.rows, first.embedded, first.unchanged) == (5, 10, False)

    again = ingest(cards, knowledge_base(engine, tmp_path), embedders())
    assert (again.generation, again.unchanged) == (first.generation, True)

    write_card(cards, "card-1", "Never take it with grapefruit.")
    (cards / "card-2.md").unlink()
    second = ingest(cards, knowledge_base(engine, tmp_path), embedders())
    assert (second.rows, second.embedded) == (4, 2)
    generations = knowledge_base(engine, tmp_path)
    assert generations.ids() == [first.generation, second.generation]
    generations.verify(second.generation)

    assert generations.rollback() == first.generation
    fresh = knowledge_base(engine, tmp_path)
    assert fresh.current_id() == first.generation
    manifest = fresh.verify(first.generation)
    loaded = fresh.load(first.generation)
    with closing(fresh.open_vectors(manifest)) as reader:
        for space, embedder in zip(manifest.spaces, embedders(), strict=True):
            for chunk in loaded.chunks:
                hits = reader.search(space.name, embedder.embed_query(chunk.passage), 1)
                assert ids_of(hits) == [chunk.id]
    with pytest.raises(InputError):
        fresh.rollback()

    third = ingest(cards, knowledge_base(engine, tmp_path), embedders(), keep=1)
    assert third.generation == second.generation
    write_card(cards, "card-9", "One more.")
    last = ingest(cards, knowledge_base(engine, tmp_path), embedders(), keep=1)
    generations = knowledge_base(engine, tmp_path)
    assert generations.ids() == [last.generation]
    assert generations.vectors.generations() == [last.generation]
    assert last.embedded == 2


def test_an_ingest_that_fails_leaves_what_was_served(engine: Engine, tmp_path: Path) -> None:
    cards = write_cards(tmp_path / "cards")
    first = ingest(cards, knowledge_base(engine, tmp_path), embedders())
    write_card(cards, "card-1", "Another text.")
    failing = [HashEmbedder(8), HashEmbedder(16, "other", 1, KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        ingest(cards, knowledge_base(engine, tmp_path), failing)

    generations = knowledge_base(engine, tmp_path)
    assert generations.vectors.generations() == [first.generation]
    assert generations.current_id() == first.generation
    generations.verify(first.generation)


def test_what_a_killed_ingest_left_is_discarded(engine: Engine, tmp_path: Path) -> None:
    rows = random_rows(5)
    documents, store = engine.open()
    build(store, "g1", rows)
    documents.put("generations/g1/rows.jsonl", b"x" * 2_000_000)

    generations = knowledge_base(engine, tmp_path)
    assert generations.discard_unfinished() == ["g1"]
    assert engine.leftovers() == []
    assert engine.open()[0].names() == []


# One store's own.


def test_qdrant_moves_one_alias_a_space_and_leaves_none_over() -> None:
    engine = QdrantEngine()
    with closing(engine):
        _, store = engine.open()
        narrow, wide = random_rows(3, dimension=8), random_rows(3, dimension=16)
        build(store, "g1", narrow, wide)
        build(store, "g2", narrow)
        store.announce("g1", [narrow.space, wide.space])
        prefix = f"{engine.namespace.replace(' ', '-')}-current-"
        assert engine.aliases() == {
            f"{prefix}{s.name}": engine_name(engine.namespace, "g1", s.name)
            for s in (narrow.space, wide.space)
        }

        store.announce("g2", [narrow.space])
        moved = engine_name(engine.namespace, "g2", narrow.space.name)
        assert engine.aliases() == {f"{prefix}{narrow.space.name}": moved}

        store.announce("g2", [])
        assert engine.aliases() == {}


# The client that is refused leaves its lock file to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_qdrant_folder_that_another_client_holds_is_a_store_error() -> None:
    engine = QdrantEngine()
    with closing(engine):
        engine.open()
        with pytest.raises(StoreError, match="already accessed"):
            open_qdrant(f"path:{engine._folder}", None, "ns")


def test_a_large_table_gets_an_index_that_finds_as_much(pg: PgvectorEngine) -> None:
    _, opened = pg.open()
    store = PgvectorStore(opened._pool, pg.namespace, exact_rows=100)
    rows = random_rows(1500, dimension=16)
    seals = build(store, "g1", rows)
    relation = pg.relation("g1", rows.space)

    found = pg.query("select indexdef from pg_indexes where tablename = %s", relation)
    assert any("hnsw" in definition for (definition,) in found)
    with closing(store.open("g1", [rows.space], seals, thorough=True)) as reader:
        for depth in (10, 150, 1200):
            query = unit_vectors(1, 16, seed=8)[0]
            hits = reader.search(rows.space.name, query, depth)
            wanted = rows.nearest(query, depth)
            assert len(hits) == depth
            assert len(set(wanted) & set(ids_of(hits))) >= 0.95 * depth


def test_a_search_of_a_large_table_is_served_by_its_index(pg: PgvectorEngine) -> None:
    _, opened = pg.open()
    store = PgvectorStore(opened._pool, pg.namespace, exact_rows=100)
    rows = random_rows(1000, dimension=16)
    with built(store, rows) as reader:
        for setting in ("enable_seqscan", "enable_sort"):  # As if the table were a large one.
            pg.query("select set_config(%s, 'off', false)", setting)
        reader.search(rows.space.name, rows.vectors[0], 10)
    pg.query("select pg_stat_force_next_flush()")
    scans = pg.query(
        "select idx_scan from pg_stat_user_indexes where relname = %s and indexrelname not like %s",
        pg.relation("g1", rows.space),
        "%pkey",
    )

    assert scans == [(1,)]


def test_without_the_right_to_make_the_extension_the_error_says_what_to_do(
    postgres: PostgresServer, pg: PgvectorEngine
) -> None:
    pg.open()
    for statement in ("create role limited login", "create database bare owner limited"):
        pg._stores[-1]._pool.run("a test", lambda c, s=statement: c.execute(s))
    url = postgres.url.replace("postgres:@/postgres", "limited:@/bare")
    documents, store = open_pgvector(url, "ns")

    assert documents.get("CURRENT") is None
    with pytest.raises(StoreError, match="administrator"):
        store.create("g1", [random_rows(1).space], None)
    store.close()


def test_a_reader_from_before_the_extension_reads_what_is_built_after_it(
    postgres: PostgresServer, pg: PgvectorEngine
) -> None:
    pg.open()
    pg._stores[-1]._pool.run("a test", lambda c: c.execute("create database fresh"))
    url = postgres.url.replace("/postgres?", "/fresh?")
    documents, early = open_pgvector(url, "ns")
    assert documents.get("CURRENT") is None
    _, store = open_pgvector(url, "ns")
    rows = random_rows(3)
    seals = build(store, "g1", rows)

    with closing(early.open("g1", [rows.space], seals)) as reader:
        assert_holds(reader, rows)
    early.close()
    store.close()


@pytest.mark.parametrize(
    ("library", "call"),
    [
        ("qdrant_client", lambda: open_qdrant(":memory:", None, "ns")),
        ("psycopg", lambda: open_pgvector("postgresql://localhost/kb", "ns")),
        ("pgvector", lambda: open_pgvector("postgresql://localhost/kb", "ns")),
    ],
)
def test_a_missing_library_is_told_with_the_extra_to_install(
    library: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(StoreError, match=r"pip install 'adherence-retrieval\[(qdrant|pgvector)\]'"):
        call()


# A server that is down, hangs, or refuses.


def test_a_chroma_server_that_is_down_is_a_store_error_until_it_is_up(
    chroma_child: ChromaServer,
) -> None:
    _assert_down_is_told(ChromaServerEngine(chroma_child), chroma_child.stop, chroma_child.start)


def test_a_postgres_that_is_down_is_a_store_error_until_it_is_up(
    postgres: PostgresServer,
) -> None:
    _assert_down_is_told(PgvectorEngine(postgres), postgres.stop, postgres.start)


def _assert_down_is_told(
    engine: ChromaServerEngine | PgvectorEngine,
    stop: Callable[[], None],
    start: Callable[[], None],
) -> None:
    documents, store = engine.open()
    rows = random_rows(5)
    documents.put("CURRENT", b"g1")
    seals = build(store, "g1", rows)
    reader = store.open("g1", [rows.space], seals)
    calls: list[Callable[[], object]] = [
        lambda: documents.get("CURRENT"),
        lambda: documents.put("CURRENT", b"g2"),
        lambda: documents.delete("CURRENT"),
        documents.names,
        store.generations,
        lambda: store.create("g2", [rows.space], None),
        lambda: store.open("g1", [rows.space], seals),
        lambda: store.drop("g1"),
        lambda: reader.count(rows.space.name),
        lambda: reader.vectors(rows.space.name, rows.ids),
        lambda: reader.search(rows.space.name, rows.vectors[0], 3),
    ]
    stop()
    try:
        for call in calls:
            with pytest.raises(StoreError) as error:
                call()
            assert " at " in str(error.value)
    finally:
        start()

    assert documents.get("CURRENT") == b"g1"
    assert_holds(reader, rows)
    assert store.generations() == ["g1"]
    reader.close()
    engine.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda port: open_chroma_server(f"http://kb:{PASSWORD}@127.0.0.1:{port}", "ns"),
        lambda port: open_qdrant(f"https://kb:{PASSWORD}@127.0.0.1:{port}", None, "ns")[0].names(),
        lambda port: open_qdrant(f"https://127.0.0.1:{port}", PASSWORD, "ns")[0].names(),
        lambda port: open_pgvector(f"postgresql://kb:{PASSWORD}@127.0.0.1:{port}/kb", "ns")[
            0
        ].names(),
        lambda port: open_pgvector(f"host=127.0.0.1 port={port} password={PASSWORD}", "ns")[
            0
        ].names(),
    ],
)
def test_an_unreachable_server_is_named_without_its_password(
    call: Callable[[int], object],
) -> None:
    port = free_port()
    with pytest.raises(StoreError) as error:
        call(port)

    assert f"127.0.0.1:{port}" in str(error.value)
    assert_secret(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda: open_chroma_server(f"kb:{PASSWORD}@localhost:8000", "ns"),
        lambda: open_chroma_server(f"http://kb:x/{PASSWORD}@localhost:8000", "ns"),
        lambda: open_qdrant(f"localhost?{PASSWORD}", None, "ns"),
        lambda: open_pgvector(f"postgres//kb:{PASSWORD}@localhost", "ns"),
        lambda: open_pgvector(f"postgresql://kb:{PASSWORD}@[localhost/kb", "ns"),
    ],
)
def test_a_malformed_address_is_refused_without_showing_it(call: Callable[[], object]) -> None:
    with pytest.raises(StoreError) as error:
        call()

    assert_secret(error)


def assert_secret(error: pytest.ExceptionInfo[StoreError]) -> None:
    assert PASSWORD not in "".join(traceback.format_exception(error.value))


def test_a_chroma_behind_a_password_never_shows_it(
    chroma_child: ChromaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = chroma_child.url.replace("http://", f"http://kb:{PASSWORD}@")
    _, store = open_chroma_server(url, "behind a password")
    rows = random_rows(2)
    credentials = base64.b64encode(f"kb:{PASSWORD}".encode()).decode()

    def fail(_: object) -> int:
        raise RuntimeError(f"{PASSWORD} {credentials}")

    with closing(store), built(store, rows) as reader:
        monkeypatch.setattr("chromadb.Collection.count", fail)
        with pytest.raises(StoreError) as error:
            reader.count(rows.space.name)

    assert_secret(error)
    assert credentials not in "".join(traceback.format_exception(error.value))


def test_a_chroma_behind_a_password_never_shows_it_when_writing_fails(
    chroma_child: ChromaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = chroma_child.url.replace("http://", f"http://kb:{PASSWORD}@")
    _, store = open_chroma_server(url, "writing behind a password")
    rows = random_rows(2)

    def fail(_: object, **__: object) -> None:
        raise RuntimeError(PASSWORD)

    with closing(store):
        writer = store.create("g1", [rows.space], None)
        monkeypatch.setattr("chromadb.Collection.upsert", fail)
        with pytest.raises(StoreError) as error:
            writer.upsert(rows.space.name, rows.ids, rows.vectors)
        monkeypatch.undo()
        store.drop("g1")

    assert_secret(error)


def test_a_generation_whose_making_was_cut_short_can_be_dropped(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store = engine.open()
    narrow, wide = random_rows(2, dimension=8), random_rows(2, dimension=16)
    for module, name in (
        ("chroma_embedded", "create_collection"),
        ("chroma_server", "create_collection"),
        ("qdrant", "_Engine.create"),
        ("pgvector", "_make_table"),
    ):
        _fail_on_second_call(monkeypatch, f"kb.stores.{module}.{name}")
    with pytest.raises(KeyboardInterrupt):
        store.create("g1", [narrow.space, wide.space], None)
    monkeypatch.undo()

    _, fresh = engine.open()
    for generation in fresh.generations():
        fresh.drop(generation)
    assert fresh.generations() == []
    assert engine.leftovers() == []


def _fail_on_second_call(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls = itertools.count(1)
    module, _, attribute = name.removeprefix("kb.stores.").partition(".")
    owner, _, function = attribute.rpartition(".")
    place = importlib.import_module(f"kb.stores.{module}")
    original = getattr(getattr(place, owner) if owner else place, function)

    def fail(*arguments: Any, **named: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    monkeypatch.setattr(name, fail)


@contextmanager
def refusing_server() -> Iterator[str]:
    """Answer 401, and show the credentials as a careless proxy would."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown = f"{self.headers.get('api-key')} {self.headers.get('Authorization')}".encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(shown)))
            self.end_headers()
            self.wfile.write(shown)

        do_POST = do_GET  # noqa: N815 - the base class's name
        do_PUT = do_GET  # noqa: N815 - the base class's name

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_wrong_key_is_a_store_error_that_does_not_show_it() -> None:
    with refusing_server() as address, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
        documents, store = open_qdrant(f"http://{address}", PASSWORD, "ns")
        with closing(store), pytest.raises(StoreError, match="401") as error:
            documents.names()
        assert_secret(error)
        with pytest.raises(StoreError, match="401") as error:
            open_chroma_server(f"http://kb:{PASSWORD}@{address}", "ns")
        assert_secret(error)


@contextmanager
def silent_server() -> Iterator[str]:
    """Take connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_never_answers_is_a_store_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant, "_TIMEOUT_S", 1)
    monkeypatch.setattr(chroma_server, "_TIMEOUT_S", 1)
    network: Mapping[str, str | int] = {**pgvector._NETWORK, "connect_timeout": 2}
    monkeypatch.setattr(pgvector, "_NETWORK", network)
    with silent_server() as address:
        with pytest.raises(StoreError, match="imed"):
            open_chroma_server(f"http://{address}", "ns")
        documents, store = open_qdrant(f"http://{address}", None, "ns")
        with closing(store), pytest.raises(StoreError, match="imed"):
            documents.names()
        with pytest.raises(StoreError, match="imeout"):
            open_pgvector(f"postgresql://kb@{address}/kb", "ns")[0].names()
