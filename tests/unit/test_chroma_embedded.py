"""What is special about embedded Chroma: private copies, sealed bytes, and its own defaults.

What every store must do is asked in ``tests/integration/test_store_contract.py``.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
import pytest
from chromadb.config import Settings
from chromadb.errors import InternalError

from fakes_kb import text_vector
from kb.errors import StoreError
from kb.stores.chroma_embedded import ChromaEmbeddedStore
from kb.types import Fingerprint, Matrix, VectorSpace
from running_service import ROOT

MOST_ROWS_A_CALL = 5461
"""What Chroma takes at once."""
MADE_BY = Fingerprint("hash", "r1", 2, "", "")
IDS = ["c1:en:1", "c2:en:1", "c3:en:1"]


@pytest.fixture
def store(tmp_path: Path) -> ChromaEmbeddedStore:
    return ChromaEmbeddedStore(tmp_path)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private copies go."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _space(rows: int, fingerprint: Fingerprint = MADE_BY) -> VectorSpace:
    return VectorSpace(fingerprint, (), rows)


NAME = _space(0).name


def _unit(*angles: float) -> Matrix:
    """Make unit vectors in a plane."""
    return np.asarray([[np.cos(a), np.sin(a)] for a in np.deg2rad(angles)], dtype=np.float32)


def _build(store: ChromaEmbeddedStore, generation: str = "g1") -> dict[str, str]:
    writer = store.create(generation, [_space(3)], None)
    writer.upsert(NAME, IDS, _unit(0, 90, 60))
    return writer.finish()


def _folder(tmp_path: Path, generation: str = "g1") -> Path:
    return tmp_path / "generations" / generation / "chroma"


def _bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _client(folder: Path) -> Any:
    return chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))


# Private copies.


def test_published_bytes_never_change_by_reading(
    tmp_path: Path, store: ChromaEmbeddedStore
) -> None:
    seals = _build(store)
    before = _bytes(_folder(tmp_path))
    for _ in range(2):
        with closing(store.open("g1", [_space(3)], seals)) as reader:
            assert [hit.chunk_id for hit in reader.search(NAME, _unit(0)[0], 3)] == [
                IDS[0],
                IDS[2],
                IDS[1],
            ]
            assert reader.count(NAME) == 3
            reader.vectors(NAME, IDS)
            assert _bytes(_folder(tmp_path)) == before
    assert _bytes(_folder(tmp_path)) == before
    assert before.keys() == seals.keys()


def test_a_private_copy_goes_when_its_reader_is_closed(
    store: ChromaEmbeddedStore, scratch: Path
) -> None:
    seals = _build(store)
    readers = [store.open("g1", [_space(3)], seals) for _ in range(2)]
    assert len(list(scratch.iterdir())) == 2
    readers[0].close()
    assert len(list(scratch.iterdir())) == 1
    np.testing.assert_allclose(readers[1].vectors(NAME, IDS[:1]), _unit(0), atol=1e-6)
    readers[1].close()
    readers[1].close()
    assert list(scratch.iterdir()) == []


def test_a_private_copy_goes_with_a_reader_that_nobody_closed(
    store: ChromaEmbeddedStore, scratch: Path
) -> None:
    seals = _build(store)
    reader = store.open("g1", [_space(3)], seals)
    assert len(list(scratch.iterdir())) == 1
    del reader
    gc.collect()
    assert list(scratch.iterdir()) == []


def test_a_private_copy_goes_with_its_process(
    tmp_path: Path, store: ChromaEmbeddedStore, scratch: Path
) -> None:
    seals = _build(store)
    child = (
        "import sys, pathlib\n"
        "from kb.stores.chroma_embedded import ChromaEmbeddedStore\n"
        "from kb.types import Fingerprint, VectorSpace\n"
        "space = VectorSpace(Fingerprint('hash', 'r1', 2, '', ''), (), 3)\n"
        "store = ChromaEmbeddedStore(pathlib.Path(sys.argv[1]))\n"
        f"reader = store.open('g1', [space], {seals!r})\n"
        "print(len(list(pathlib.Path(sys.argv[2]).iterdir())), reader.count(space.name))\n"
        "if sys.argv[3] == 'raise': raise SystemExit('an error')\n"
    )
    for how, code in (("end", 0), ("raise", 1)):
        done = subprocess.run(
            [sys.executable, "-c", child, tmp_path, scratch, how],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        assert (done.returncode, done.stdout) == (code, "1 3\n"), done.stderr
        assert list(scratch.iterdir()) == []


def _dead_pid() -> int:
    """Give the number of a process that has ended, and whose end was waited for."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_copies_of_killed_processes_are_removed_and_no_others(
    store: ChromaEmbeddedStore, scratch: Path
) -> None:
    seals = _build(store)
    dead = scratch / f"adherence-kb-{_dead_pid()}-x"
    kept = [
        scratch / f"adherence-kb-{os.getpid()}-x",
        scratch / f"adherence-kb-{os.getppid()}-x",
        scratch / "adherence-kb-notes",
        scratch / f"another-{_dead_pid()}-x",
    ]
    for folder in (dead, *kept):
        folder.mkdir()
        (folder / "chroma.sqlite3").write_bytes(b"")
    store.open("g1", [_space(3)], seals).close()
    assert sorted(scratch.iterdir()) == sorted(kept)


def test_a_copy_that_cannot_be_opened_is_not_left(
    store: ChromaEmbeddedStore, scratch: Path
) -> None:
    seals = _build(store)
    with pytest.raises(StoreError, match="holds 3 rows, not 4"):
        store.open("g1", [_space(4)], seals)
    assert list(scratch.iterdir()) == []


def test_a_full_temporary_folder_is_a_store_error_and_gets_its_room_back(
    store: ChromaEmbeddedStore, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seals = _build(store)
    copy = shutil.copy2

    def fill(source: str, target: str, **named: bool) -> None:
        copy(source, target, **named)
        if len(list(scratch.rglob("*"))) > 2:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil.copytree, "__defaults__", (False, None, fill, False, False))
        with pytest.raises(StoreError, match="No space left on device"):
            store.open("g1", [_space(3)], seals)
    assert list(scratch.iterdir()) == []
    store.open("g1", [_space(3)], seals).close()


def test_a_temporary_folder_that_is_not_there_is_a_store_error(
    tmp_path: Path, store: ChromaEmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seals = _build(store)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="cannot be copied for reading") as caught:
        store.open("g1", [_space(3)], seals)
    assert str(_folder(tmp_path)) in str(caught.value)


# Seals.


def _main_file(folder: Path) -> Path:
    return folder / "chroma.sqlite3"


def _index_file(folder: Path) -> Path:
    (path,) = folder.glob("*/data_level0.bin")
    return path


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "garbage": lambda whole: b"garbage " * (len(whole) // 8),
    "cut short": lambda whole: whole[: len(whole) // 2],
    "header only": lambda whole: whole[:100],
    "one bit": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
    "one byte more": lambda whole: whole + b"\0",
}


@pytest.mark.parametrize("file_of", [_main_file, _index_file])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_named_and_never_read(
    tmp_path: Path,
    store: ChromaEmbeddedStore,
    scratch: Path,
    file_of: Callable[[Path], Path],
    damage: Callable[[bytes], bytes],
) -> None:
    seals = _build(store)
    path = file_of(_folder(tmp_path))
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):  # Chroma remembers, within a process, what it could not open.
        with pytest.raises(StoreError, match="is damaged; run `retrieval ingest`") as caught:
            store.open("g1", [_space(3)], seals)
        assert str(path) in str(caught.value)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("file_of", [_main_file, _index_file])
def test_a_missing_file_is_named(
    tmp_path: Path, store: ChromaEmbeddedStore, file_of: Callable[[Path], Path]
) -> None:
    seals = _build(store)
    path = file_of(_folder(tmp_path))
    path.unlink()
    with pytest.raises(StoreError, match="is missing; run `retrieval ingest`") as caught:
        store.open("g1", [_space(3)], seals)
    assert str(path) in str(caught.value)
    assert not path.exists()


def test_a_file_too_many_is_named(tmp_path: Path, store: ChromaEmbeddedStore) -> None:
    seals = _build(store)
    path = _folder(tmp_path) / "chroma.sqlite3-wal"
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="does not belong here") as caught:
        store.open("g1", [_space(3)], seals)
    assert str(path) in str(caught.value)


def test_a_generation_that_is_not_there_is_named_and_not_made(
    tmp_path: Path, store: ChromaEmbeddedStore
) -> None:
    seals = _build(store)
    with pytest.raises(StoreError, match="retrieval ingest") as caught:
        store.open("g2", [_space(3)], seals)
    assert str(_folder(tmp_path, "g2")) in str(caught.value)
    assert not _folder(tmp_path, "g2").exists()


def test_a_copied_home_is_as_sound_as_the_first(tmp_path: Path, store: ChromaEmbeddedStore) -> None:
    seals = _build(store)
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / "generations").rename(moved / "generations")
    with closing(ChromaEmbeddedStore(moved).open("g1", [_space(3)], seals)) as reader:
        np.testing.assert_allclose(reader.vectors(NAME, IDS), _unit(0, 90, 60), atol=1e-6)


# Collections.


@pytest.mark.parametrize("how", ["by default", "metadata", "configuration"])
def test_a_collection_that_measures_another_distance_is_refused(
    tmp_path: Path, store: ChromaEmbeddedStore, how: str
) -> None:
    client = _client(_folder(tmp_path))
    if how == "metadata":
        client.create_collection(NAME, metadata={"hnsw:space": "l2"}, embedding_function=None)
    elif how == "configuration":
        client.create_collection(
            NAME, configuration={"hnsw": {"space": "ip"}}, embedding_function=None
        )
    else:
        client.create_collection(NAME, embedding_function=None)
    client.close()
    for attempt in (
        lambda: store.open("g1", [_space(0)], _sealed(tmp_path)),
        lambda: store.create("g2", [_space(0)], "g1"),
    ):
        with pytest.raises(StoreError, match=r"not 'cosine'.*retrieval ingest") as caught:
            attempt()
        assert str(tmp_path) in str(caught.value)


def _sealed(tmp_path: Path) -> dict[str, str]:
    """Seal what was not built by us, to come as far as opening it."""
    from kb.stores.chroma_embedded import _sums

    return _sums(_folder(tmp_path))


def test_another_fingerprint_under_the_same_name_is_refused_and_both_are_named(
    tmp_path: Path, store: ChromaEmbeddedStore
) -> None:
    _build(store)
    client = _client(_folder(tmp_path))
    client.get_collection(NAME, embedding_function=None).modify(metadata={"fingerprint": "other"})
    client.close()
    with pytest.raises(StoreError, match="holds vectors of other, not hash"):
        store.open("g1", [_space(3)], _sealed(tmp_path))


def test_vectors_of_another_dimension_than_their_space_says_are_refused(
    store: ChromaEmbeddedStore,
) -> None:
    writer = store.create("g1", [_space(1)], None)
    writer.upsert(NAME, IDS[:1], np.ones((1, 3), np.float32))
    seals = writer.finish()
    with pytest.raises(StoreError, match="have 3 dimensions"):
        store.open("g1", [_space(1)], seals)


def test_a_database_without_our_collection_is_refused_and_says_what_is_there(
    store: ChromaEmbeddedStore,
) -> None:
    seals = _build(store)
    other = _space(3, replace(MADE_BY, revision="r2"))
    with pytest.raises(StoreError, match=f"there is no {other.name}.*there is {NAME}"):
        store.open("g1", [other], seals)


def test_more_rows_than_a_call_takes_are_all_written_read_and_deleted(
    store: ChromaEmbeddedStore,
) -> None:
    count = 6000
    assert count > MOST_ROWS_A_CALL
    ids = [f"c{n:04}:en:1" for n in range(count)]
    vectors = np.stack([text_vector(chunk_id, 2) for chunk_id in ids])
    writer = store.create("g1", [_space(count)], None)
    writer.upsert(NAME, ids, vectors)
    seals = writer.finish()
    with closing(store.open("g1", [_space(count)], seals)) as reader:
        assert reader.count(NAME) == count
        np.testing.assert_allclose(reader.vectors(NAME, ids), vectors, atol=1e-6)
    writer = store.create("g2", [_space(count - 5500)], "g1")
    writer.delete(NAME, ids[:5500])
    seals = writer.finish()
    with closing(store.open("g2", [_space(count - 5500)], seals)) as reader:
        np.testing.assert_allclose(reader.vectors(NAME, ids[5500:]), vectors[5500:], atol=1e-6)
        with pytest.raises(StoreError, match=f"holds no {ids[0]}"):
            reader.vectors(NAME, ids[:1])


def test_vectors_come_in_the_order_that_is_asked_also_twice(store: ChromaEmbeddedStore) -> None:
    seals = _build(store)
    with closing(store.open("g1", [_space(3)], seals)) as reader:
        found = reader.vectors(NAME, [IDS[2], IDS[0], IDS[1], IDS[1]])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, _unit(60, 0, 90, 90), atol=1e-6)
        assert len(reader.vectors(NAME, [])) == 0


def test_the_length_of_a_query_changes_no_score(store: ChromaEmbeddedStore) -> None:
    seals = _build(store)
    with closing(store.open("g1", [_space(3)], seals)) as reader:
        scores = [hit.score for hit in reader.search(NAME, 5 * _unit(0)[0], 3)]
    assert scores == pytest.approx([1, 0.5, 0], abs=1e-5)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the database refuse one kind of call."""
    from chromadb.api.models.Collection import Collection

    def refuse(*_: object, **__: object) -> None:
        raise InternalError("database or disk is full")

    return lambda method: monkeypatch.setattr(Collection, method, refuse)


def test_a_write_that_the_database_refuses_is_a_store_error(
    store: ChromaEmbeddedStore, failing: Callable[[str], None]
) -> None:
    writer = store.create("g1", [_space(3)], None)
    failing("upsert")
    with pytest.raises(StoreError, match="disk is full"):
        writer.upsert(NAME, IDS, _unit(0, 90, 60))


@pytest.mark.parametrize("method", ["count", "get", "query"])
def test_a_read_that_the_database_refuses_is_a_store_error(
    store: ChromaEmbeddedStore, failing: Callable[[str], None], method: str
) -> None:
    seals = _build(store)
    with closing(store.open("g1", [_space(3)], seals)) as reader:
        failing(method)
        calls: dict[str, Callable[[], object]] = {
            "count": lambda: reader.count(NAME),
            "get": lambda: reader.vectors(NAME, IDS),
            "query": lambda: reader.search(NAME, _unit(0)[0], 3),
        }
        with pytest.raises(StoreError, match="disk is full"):
            calls[method]()


def test_a_generation_is_made_once(tmp_path: Path, store: ChromaEmbeddedStore) -> None:
    seals = _build(store)
    with pytest.raises(StoreError, match="cannot be made"):
        store.create("g1", [_space(3)], None)
    store.open("g1", [_space(3)], seals).close()
    store.drop("g1")
    assert store.generations() == []
    assert not _folder(tmp_path).exists()
