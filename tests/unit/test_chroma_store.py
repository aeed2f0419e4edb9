"""The embedded Chroma store, on a real database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import chromadb
import numpy as np
import pytest
from chromadb.config import Settings
from chromadb.errors import InternalError

from fakes_kb import sub_chunk, text_vector
from kb.errors import StoreError
from kb.stores.chroma import COLLECTION, ChromaStore
from kb.types import Matrix, Source, SubChunk

MOST_ROWS_A_CALL = 5461
"""What Chroma takes at once."""


def _unit(*angles: float) -> Matrix:
    """Make unit vectors in a plane."""
    return np.asarray([[np.cos(a), np.sin(a)] for a in np.deg2rad(angles)], dtype=np.float32)


def _client(folder: Path) -> chromadb.api.ClientAPI:
    return chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))


@pytest.mark.parametrize("reopened", [False, True])
def test_scores_are_cosines(tmp_path: Path, reopened: bool) -> None:
    store = ChromaStore.create(tmp_path / "db")
    chunks = [sub_chunk(n) for n in range(4)]
    store.upsert(chunks, _unit(0, 90, 180, 60))
    if reopened:
        store = ChromaStore.open(tmp_path / "db")
    hits = store.search(_unit(0)[0], 4)
    assert [hit.chunk_id for hit in hits] == [chunks[n].id for n in (0, 3, 1, 2)]
    assert [hit.score for hit in hits] == pytest.approx([1, 0.5, 0, -1], abs=1e-5)


def test_the_length_of_a_query_changes_no_score(tmp_path: Path) -> None:
    store = ChromaStore.create(tmp_path)
    store.upsert([sub_chunk(1)], _unit(60))
    assert store.search(5 * _unit(0)[0], 1)[0].score == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("how", ["by default", "metadata", "configuration"])
def test_a_collection_that_measures_another_distance_is_refused(tmp_path: Path, how: str) -> None:
    client = _client(tmp_path)
    if how == "metadata":
        client.create_collection(COLLECTION, metadata={"hnsw:space": "l2"}, embedding_function=None)
    elif how == "configuration":
        client.create_collection(
            COLLECTION, configuration={"hnsw": {"space": "ip"}}, embedding_function=None
        )
    else:
        client.create_collection(COLLECTION, embedding_function=None)
    with pytest.raises(StoreError, match=r"not 'cosine'.*retrieval ingest") as caught:
        ChromaStore.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_rows_come_back_field_by_field_and_by_id(tmp_path: Path) -> None:
    sources = (
        Source("Label: «A» - \U0001f48a", "https://example.org/?a=1&b=2", "CC0 1.0", ("A", "B")),
        Source("WHO", "https://example.org/who", "CC BY 4.0"),
    )
    full = SubChunk(
        id="c2:pt-BR:7",
        card_id="c2",
        locale="pt-BR",
        ordinal=7,
        title="Interações: 2,5 mg",
        category="drug-interaction",
        section="Não misture",
        text='Não tome "isso".\n{0.__class__} \x1b[31m',
        drugs=("varfarina", "ácido acetilsalicílico"),
        sources=sources,
    )
    bare = replace(full, id="c1:en:1", section="", drugs=(), sources=(), locale="en")
    store = ChromaStore.create(tmp_path)
    store.upsert([full, bare], _unit(0, 90))
    assert store.chunks() == ChromaStore.open(tmp_path).chunks() == [bare, full]


def test_vectors_come_in_the_order_that_is_asked(tmp_path: Path) -> None:
    store = ChromaStore.create(tmp_path)
    chunks = [sub_chunk(n) for n in range(5)]
    vectors = np.stack([text_vector(chunk.text, 8) for chunk in chunks])
    store.upsert(chunks, vectors)
    order = [3, 0, 4, 4]
    np.testing.assert_allclose(
        store.vectors([chunks[n].id for n in order]), vectors[order], atol=1e-6
    )
    assert store.vectors([chunks[0].id]).dtype == np.float32


def test_more_rows_than_a_call_takes_are_all_written(tmp_path: Path) -> None:
    count = MOST_ROWS_A_CALL + 1
    chunks = [sub_chunk(n) for n in range(count)]
    vectors = np.random.default_rng(3).normal(size=(count, 2)).astype(np.float32)
    store = ChromaStore.create(tmp_path)
    store.upsert(chunks, vectors)
    assert store.count() == count
    ids = [chunk.id for chunk in chunks]
    np.testing.assert_allclose(store.vectors(ids), vectors, atol=1e-6)


def test_the_same_text_in_two_cards_is_two_rows(tmp_path: Path) -> None:
    one = replace(sub_chunk(1, "Take with food."), title="Ibuprofen")
    other = replace(sub_chunk(2, "Take with food."), title="Naproxen")
    store = ChromaStore.create(tmp_path)
    store.upsert([other, one], _unit(0, 0))
    assert [(chunk.card_id, chunk.title) for chunk in store.chunks()] == [
        ("card-1", "Ibuprofen"),
        ("card-2", "Naproxen"),
    ]
    # Equal scores, so the ids decide, whichever was written first.
    assert [hit.chunk_id for hit in store.search(_unit(10)[0], 2)] == [one.id, other.id]


def test_writing_a_row_again_replaces_it(tmp_path: Path) -> None:
    store = ChromaStore.create(tmp_path)
    store.upsert([sub_chunk(1), sub_chunk(2)], _unit(0, 90))
    store.upsert([sub_chunk(1, "new text")], _unit(180))
    assert store.count() == 2
    assert [chunk.text for chunk in store.chunks()] == ["new text", "text 2"]
    assert store.search(_unit(180)[0], 1)[0].chunk_id == sub_chunk(1).id


def test_a_depth_beyond_the_rows_gives_what_there_is(tmp_path: Path) -> None:
    store = ChromaStore.create(tmp_path)
    store.upsert([sub_chunk(1), sub_chunk(2)], _unit(0, 90))
    assert len(store.search(_unit(0)[0], 100)) == 2


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    ChromaStore.create(tmp_path).upsert([], None)
    store = ChromaStore.open(tmp_path)
    assert store.count() == 0
    assert store.chunks() == []
    assert store.search(_unit(0)[0], 5) == []
    assert len(store.vectors([])) == 0


def test_a_store_without_a_vector_space_keeps_its_rows(tmp_path: Path) -> None:
    chunks = [sub_chunk(1), sub_chunk(2)]
    ChromaStore.create(tmp_path).upsert(chunks, None)
    store = ChromaStore.open(tmp_path)
    assert store.count() == 2
    assert store.chunks() == chunks


@pytest.mark.parametrize("there", [True, False])
def test_a_missing_store_is_named_and_not_made(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "db"
    if there:
        folder.mkdir()
    with pytest.raises(StoreError, match="retrieval ingest") as caught:
        ChromaStore.open(folder)
    assert str(folder) in str(caught.value)
    assert folder.exists() == there
    assert not there or list(folder.iterdir()) == []


def test_a_database_without_our_collection_is_refused(tmp_path: Path) -> None:
    _client(tmp_path).create_collection("another", embedding_function=None)
    with pytest.raises(StoreError) as caught:
        ChromaStore.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "garbage": lambda whole: b"garbage " * (len(whole) // 8),
    "cut short": lambda whole: whole[: len(whole) // 2],
    "header only": lambda whole: whole[:100],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_database_is_named_and_never_read(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    ChromaStore.create(tmp_path / "good").upsert([sub_chunk(1)], _unit(0))
    whole = (tmp_path / "good" / "chroma.sqlite3").read_bytes()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "chroma.sqlite3").write_bytes(damage(whole))
    for _ in range(2):  # Chroma remembers, within a process, what it could not open.
        with pytest.raises(StoreError) as caught:
            ChromaStore.open(broken)
        assert str(broken) in str(caught.value)


def test_a_write_that_the_database_refuses_is_a_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise InternalError("database or disk is full")

    store = ChromaStore.create(tmp_path / "store")
    monkeypatch.setattr(store._collection, "upsert", refuse)

    with pytest.raises(StoreError, match="disk is full"):
        store.upsert([sub_chunk(1)], None)
