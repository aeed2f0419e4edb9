"""Generations: immutable, complete or not there, and one pointer to the one that is served."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes_kb import sub_chunk
from kb.errors import StoreError
from kb.generations import Generations, Manifest, load_generation
from kb.stores.chroma import ChromaStore
from kb.types import Fingerprint

MADE_BY = Fingerprint("bge-small-en-v1.5", "r1", 384, "query: ", "")


def _manifest(generation_id: str = "g1", rows: int = 0) -> Manifest:
    return Manifest(generation_id, "2026-11-30T20:15:04+00:00", rows, "a1b2c3", MADE_BY)


def _publish(generations: Generations, generation_id: str) -> Manifest:
    manifest = _manifest(generation_id)
    generations.folder(generation_id).mkdir(parents=True)
    generations.publish(manifest)
    return manifest


def _build(generations: Generations, generation_id: str, rows: int) -> None:
    store = ChromaStore.create(generations.folder(generation_id) / "chroma")
    vectors = np.eye(rows, 3, dtype=np.float32)
    store.upsert([sub_chunk(n) for n in range(rows)], vectors)


def test_nothing_is_current_before_the_first_is_published(tmp_path: Path) -> None:
    assert Generations(tmp_path).current() is None
    assert Generations(tmp_path / "none").current() is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("fingerprint", [MADE_BY, None])
def test_what_is_published_is_current_and_reads_back(
    tmp_path: Path, fingerprint: Fingerprint | None
) -> None:
    generations = Generations(tmp_path)
    manifest = replace(_manifest(), fingerprint=fingerprint)
    generations.folder("g1").mkdir(parents=True)
    generations.publish(manifest)
    assert Generations(tmp_path).current() == manifest
    assert generations.read("g1") == manifest
    assert not list(tmp_path.rglob("*.new"))


def test_the_latest_published_is_current_and_the_older_stays_readable(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    first, second = _publish(generations, "g1"), _publish(generations, "g2")
    assert generations.current() == second
    assert generations.read("g1") == first


def test_only_the_last_three_are_kept(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    for n in range(1, 6):
        _publish(generations, f"g{n}")
    assert {path.name for path in (tmp_path / "generations").iterdir()} == {"g3", "g4", "g5"}


def test_the_published_one_is_never_pruned_even_when_the_clock_went_back(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    for n in range(5, 9):
        _publish(generations, f"g{n}")
    manifest = _publish(generations, "g1")
    assert generations.current() == manifest


def test_what_a_crashed_ingest_left_is_discarded_and_what_is_finished_stays(
    tmp_path: Path,
) -> None:
    generations = Generations(tmp_path)
    manifest = _publish(generations, "g1")
    half = generations.folder("g2") / "chroma"
    half.mkdir(parents=True)
    (half / "chroma.sqlite3").write_bytes(b"half")
    (generations.folder("g3")).mkdir()
    (generations.folder("g3") / "manifest.json.new").write_text("{", "utf-8")
    generations.discard_unfinished()
    assert [path.name for path in (tmp_path / "generations").iterdir()] == ["g1"]
    assert generations.current() == manifest


def test_discarding_in_a_new_home_is_no_error(tmp_path: Path) -> None:
    Generations(tmp_path / "none").discard_unfinished()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"5",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"fingerprint": null}',
        b'{"fingerprint": {}, "id": "g1"}',
        b'{"fingerprint": "bge"}',
        b'{"fingerprint": null, "id": "g1", "created": "", "rows": 0, "content_hash": "", "x": 1}',
    ],
)
def test_a_corrupted_manifest_is_a_store_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    generations = Generations(tmp_path)
    _publish(generations, "g1")
    path = generations.folder("g1") / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="retrieval ingest") as caught:
        generations.current()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"g\x001", b"none-such\n"])
def test_a_corrupted_pointer_is_a_store_error_that_names_a_file(
    tmp_path: Path, content: bytes
) -> None:
    generations = Generations(tmp_path)
    _publish(generations, "g1")
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(StoreError, match="retrieval ingest") as caught:
        generations.current()
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00"])
def test_a_pointer_that_names_nothing_is_named_itself(tmp_path: Path, content: bytes) -> None:
    generations = Generations(tmp_path)
    _publish(generations, "g1")
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(StoreError, match="CURRENT"):
        generations.current()


def test_a_missing_generation_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="g9"):
        Generations(tmp_path).read("g9")
    with pytest.raises(StoreError, match="g9"):
        load_generation(tmp_path, "g9")


def test_a_generation_is_loaded_with_its_rows_and_its_store(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    _build(generations, "g1", 3)
    generations.publish(_manifest("g1", 3))
    loaded, store = load_generation(tmp_path, "g1")
    assert loaded.manifest == _manifest("g1", 3)
    assert list(loaded.chunks) == [sub_chunk(n) for n in range(3)]
    assert store.count() == 3


@pytest.mark.parametrize("rows", [2, 4])
def test_a_store_with_other_rows_than_its_manifest_says_is_refused(
    tmp_path: Path, rows: int
) -> None:
    generations = Generations(tmp_path)
    _build(generations, "g1", 3)
    generations.publish(_manifest("g1", rows))
    with pytest.raises(StoreError, match=f"g1 holds 3 rows, its manifest says {rows}"):
        load_generation(tmp_path, "g1")


def test_a_generation_without_its_store_is_refused(tmp_path: Path) -> None:
    _publish(Generations(tmp_path), "g1")
    with pytest.raises(StoreError, match="no Chroma store"):
        load_generation(tmp_path, "g1")


def test_a_second_builder_is_refused_at_once_and_the_next_is_not(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    with (
        Generations(home).lock(),
        pytest.raises(StoreError, match="another ingest is running") as caught,
        Generations(home).lock(),
    ):
        pass
    assert str(home) in str(caught.value)
    with Generations(home).lock():
        pass


def test_the_lock_is_free_again_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Generations(tmp_path).lock():
        _ = 1 / 0
    with Generations(tmp_path).lock():
        pass


def test_the_lock_holds_against_another_process(tmp_path: Path) -> None:
    # Without kb.generations, so that the child starts fast.
    child = (
        "import sys, filelock\n"
        "try: filelock.FileLock(sys.argv[1], timeout=0).acquire()\n"
        "except filelock.Timeout: sys.exit(3)"
    )
    command = [sys.executable, "-c", child, str(tmp_path / "ingest.lock")]
    with Generations(tmp_path).lock():
        assert subprocess.run(command, check=False).returncode == 3
    assert subprocess.run(command, check=False).returncode == 0


def test_a_manifest_is_readable_by_people_and_other_programs(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    _publish(generations, "g1")
    data = json.loads((generations.folder("g1") / "manifest.json").read_text("utf-8"))
    assert data["fingerprint"]["embedder_id"] == "bge-small-en-v1.5"
    assert (tmp_path / "CURRENT").read_text("utf-8") == "g1\n"
