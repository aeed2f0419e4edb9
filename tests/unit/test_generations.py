"""Generations: immutable, complete or not there, and one pointer to the one that is served."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes_kb import generations_in, sub_chunk
from kb.errors import InputError, StoreError
from kb.generations import Generations, LoadedGeneration, Manifest
from kb.rows import encode_rows, hash_rows
from kb.types import Fingerprint, VectorSpace

MADE_BY = Fingerprint("bge-small-en-v1.5", "r1", 3, "query: ", "")
ALSO_BY = Fingerprint("multilingual-e5-small", "r1", 2, "query: ", "passage: ")


@pytest.fixture
def generations(tmp_path: Path) -> Generations:
    return generations_in(tmp_path)


def _space(rows: int, fingerprint: Fingerprint = MADE_BY) -> VectorSpace:
    return VectorSpace(fingerprint, ("en",), rows)


def _finish(
    generations: Generations, generation_id: str, rows: int = 0, *spaces: VectorSpace
) -> Manifest:
    """Build and finish a generation; it is not published."""
    chunks = [sub_chunk(n) for n in range(rows)]
    data = encode_rows(chunks)
    writer = generations.vectors.create(generation_id, spaces, None)
    for space in spaces:
        vectors = np.eye(rows, space.fingerprint.dimension, dtype=np.float32) + 0.5
        writer.upsert(space.name, [chunk.id for chunk in chunks], vectors)
    manifest = Manifest(
        generation_id,
        "2026-11-30T20:15:04+00:00",
        rows,
        hash_rows(data),
        spaces,
        writer.finish(),
    )
    generations.finish(manifest, data)
    return manifest


def _publish(
    generations: Generations, generation_id: str, rows: int = 0, *spaces: VectorSpace
) -> Manifest:
    manifest = _finish(generations, generation_id, rows, *spaces)
    generations.publish(generation_id)
    return manifest


def _folder(home: Path, generation_id: str) -> Path:
    return home / "generations" / generation_id


def _damage_rows(home: Path, generation_id: str) -> None:
    (_folder(home, generation_id) / "rows.jsonl").write_bytes(b"{}\n")


def _there(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "generations").iterdir())


def test_nothing_is_current_before_the_first_is_published(tmp_path: Path) -> None:
    for home in (tmp_path, tmp_path / "none"):
        assert generations_in(home).current() is None
        assert generations_in(home).current_id() is None
        assert generations_in(home).ids() == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "spaces",
    [(), (_space(2),), (_space(2), _space(2, ALSO_BY))],
    ids=["no space", "one space", "two spaces"],
)
def test_what_is_published_is_current_and_reads_back(
    tmp_path: Path, generations: Generations, spaces: tuple[VectorSpace, ...]
) -> None:
    manifest = _publish(generations, "g1", 2, *spaces)
    assert generations_in(tmp_path).current() == manifest
    assert generations_in(tmp_path).current_id() == "g1"
    assert generations.read("g1") == manifest
    assert not list(tmp_path.rglob("*.new"))


def test_the_latest_published_is_current_and_the_older_stays_readable(
    generations: Generations,
) -> None:
    first, second = _publish(generations, "g1"), _publish(generations, "g2")
    assert generations.current() == second
    assert generations.read("g1") == first


def test_what_is_finished_is_listed_but_not_served_before_it_is_published(
    generations: Generations,
) -> None:
    _publish(generations, "g1")
    _finish(generations, "g2")
    assert generations.ids() == ["g1", "g2"]
    assert generations.current_id() == "g1"


def test_an_unfinished_generation_is_not_listed(generations: Generations) -> None:
    _publish(generations, "g1")
    generations.vectors.create("g2", [_space(0)], None).finish()
    assert generations.ids() == ["g1"]


# Pruning.


def test_only_the_newest_are_kept(tmp_path: Path, generations: Generations) -> None:
    for n in range(1, 6):
        _publish(generations, f"g{n}")
    assert generations.prune(3) == ["g1", "g2"]
    assert _there(tmp_path) == ["g3", "g4", "g5"]
    assert generations.prune(3) == []


def test_the_published_one_is_never_pruned_even_when_the_clock_went_back(
    tmp_path: Path, generations: Generations
) -> None:
    for n in range(5, 9):
        _publish(generations, f"g{n}")
    manifest = _publish(generations, "g1")
    assert generations.prune(2) == ["g5", "g6"]
    assert generations.current() == manifest
    assert _there(tmp_path) == ["g1", "g7", "g8"]


def test_a_dropped_generation_loses_its_manifest_first_and_is_gone(
    tmp_path: Path, generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish(generations, "g1")
    _finish(generations, "g2", 2, _space(2))
    seen: list[list[str]] = []
    drop = generations.vectors.drop
    with monkeypatch.context() as patch:
        # Whoever is killed here leaves what was never finished, and not half of what was.
        patch.setattr(generations.vectors, "drop", lambda _id: seen.append(generations.ids()))
        generations.drop("g2")
        assert seen == [["g1"]]
        assert generations.vectors.generations() == ["g1", "g2"]
    assert generations.vectors.drop == drop
    assert generations.discard_unfinished() == ["g2"]
    assert _there(tmp_path) == ["g1"]


# What a crash leaves.


def test_what_a_crashed_ingest_left_is_discarded_and_what_is_finished_stays(
    tmp_path: Path, generations: Generations
) -> None:
    manifest = _publish(generations, "g1")
    half = _folder(tmp_path, "g2") / "chroma"
    half.mkdir(parents=True)
    (half / "chroma.sqlite3").write_bytes(b"half")
    _folder(tmp_path, "g3").mkdir()
    (_folder(tmp_path, "g3") / "manifest.json.new").write_text("{", "utf-8")
    _folder(tmp_path, "g4").mkdir()
    (_folder(tmp_path, "g4") / "rows.jsonl").write_text("{", "utf-8")
    (tmp_path / "CURRENT.new").write_text("g", "utf-8")
    assert generations.discard_unfinished() == ["g2", "g3", "g4"]
    assert _there(tmp_path) == ["g1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CURRENT", "generations"]
    assert generations.current() == manifest
    assert generations.discard_unfinished() == []


def test_discarding_in_a_new_home_is_no_error(tmp_path: Path) -> None:
    assert generations_in(tmp_path / "none").discard_unfinished() == []
    assert not (tmp_path / "none").exists()


# Damage.


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
        b'{"manifest": null, "sha256": ""}',
        b'{"manifest": {}, "sha256": ""}',
        b'{"manifest": "bge", "sha256": "x"}',
        b'{"manifest": {"id": "g1", "spaces": []}}',
        # The sum is right, but this is no manifest.
        b'{"manifest": {}, "sha256": "%s"}' % hashlib.sha256(b"{}").hexdigest().encode(),
    ],
)
def test_a_corrupted_manifest_is_a_store_error_that_names_the_file(
    tmp_path: Path, generations: Generations, content: bytes
) -> None:
    _publish(generations, "g1")
    (_folder(tmp_path, "g1") / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match="retrieval ingest") as caught:
        generations.current()
    assert "generations/g1/manifest.json" in str(caught.value)


def test_a_manifest_with_one_changed_number_is_damaged(
    tmp_path: Path, generations: Generations
) -> None:
    _publish(generations, "g1", 2, _space(2))
    path = _folder(tmp_path, "g1") / "manifest.json"
    path.write_text(path.read_text("utf-8").replace('"rows": 2', '"rows": 3'), "utf-8")
    with pytest.raises(StoreError, match=r"g1/manifest\.json: is damaged"):
        generations.read("g1")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff\xfe\x00", b"g\x001", b"none-such\n", b"../g1", b"g1\ng2\n"]
)
def test_a_corrupted_pointer_is_a_store_error_that_names_a_file(
    tmp_path: Path, generations: Generations, content: bytes
) -> None:
    _publish(generations, "g1")
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(StoreError, match=r"(CURRENT|manifest\.json).*retrieval ingest"):
        generations.current()


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"g\x001", b"../generations/g1"])
def test_a_pointer_that_names_nothing_is_named_itself(
    tmp_path: Path, generations: Generations, content: bytes
) -> None:
    _publish(generations, "g1")
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(StoreError, match="CURRENT"):
        generations.current_id()


def test_a_missing_generation_is_a_store_error(generations: Generations) -> None:
    with pytest.raises(StoreError, match="g9"):
        generations.read("g9")
    with pytest.raises(StoreError, match="g9"):
        generations.load("g9")
    with pytest.raises(StoreError, match="g9"):
        generations.verify("g9")


def test_a_generation_is_loaded_with_its_rows_and_its_vectors(generations: Generations) -> None:
    manifest = _publish(generations, "g1", 3, _space(3))
    loaded = generations.load("g1")
    assert loaded == LoadedGeneration(manifest, tuple(sub_chunk(n) for n in range(3)))
    reader = generations.open_vectors(manifest)
    assert reader.count(_space(3).name) == 3
    assert reader.vectors(_space(3).name, [sub_chunk(1).id]).shape == (1, 3)
    reader.close()


@pytest.mark.parametrize("rows", [2, 4])
def test_a_store_with_other_rows_than_its_manifest_says_is_refused(
    generations: Generations, rows: int
) -> None:
    manifest = _publish(generations, "g1", 3, _space(3))
    with pytest.raises(StoreError, match=f"holds 3 rows, not {rows}"):
        generations.open_vectors(replace(manifest, spaces=(_space(rows),)))


def test_a_generation_without_its_store_is_refused(
    tmp_path: Path, generations: Generations
) -> None:
    manifest = _publish(generations, "g1", 3, _space(3))
    (_folder(tmp_path, "g1") / "chroma" / "chroma.sqlite3").unlink()
    with pytest.raises(StoreError, match=r"chroma\.sqlite3: is missing"):
        generations.open_vectors(manifest)
    with pytest.raises(StoreError, match=r"chroma\.sqlite3: is missing"):
        generations.verify("g1")


def test_a_sound_generation_is_verified_and_its_manifest_given(generations: Generations) -> None:
    manifest = _publish(generations, "g1", 3, _space(3), _space(3, ALSO_BY))
    assert generations.verify("g1") == manifest


def test_verifying_reads_rows_and_vectors(tmp_path: Path, generations: Generations) -> None:
    _publish(generations, "g1", 3, _space(3))
    _damage_rows(tmp_path, "g1")
    with pytest.raises(StoreError, match=r"g1/rows\.jsonl: is damaged"):
        generations.verify("g1")


# What to serve when the published one cannot be.


def test_the_published_one_is_loaded_where_it_is_sound(generations: Generations) -> None:
    for n in range(1, 4):
        _finish(generations, f"g{n}", n)
    generations.publish("g2")
    generation_id, loaded = generations.newest_sound(generations.load)
    assert (generation_id, len(loaded.chunks)) == ("g2", 2)


def test_before_anything_was_published_the_remedy_is_said(generations: Generations) -> None:
    _finish(generations, "g1")
    with pytest.raises(StoreError, match="no knowledge base yet; run `retrieval ingest`"):
        generations.newest_sound(generations.load)


def test_a_damaged_one_gives_the_newest_sound_before_it_and_is_logged(
    tmp_path: Path, generations: Generations, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(1, 6):
        _publish(generations, f"g{n}", n)
    generations.publish("g4")
    for damaged in ("g4", "g3"):
        _damage_rows(tmp_path, damaged)
    with caplog.at_level(logging.WARNING):
        generation_id, loaded = generations.newest_sound(generations.load)
    assert (generation_id, len(loaded.chunks)) == ("g2", 2)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert "g4/rows.jsonl: is damaged" in warnings[0]
    assert "g3/rows.jsonl: is damaged" in warnings[1]


def test_when_none_is_sound_the_published_ones_reason_is_raised(
    tmp_path: Path, generations: Generations
) -> None:
    for n in (1, 2):
        _publish(generations, f"g{n}", n)
        _damage_rows(tmp_path, f"g{n}")
    with pytest.raises(StoreError, match=r"g2/rows\.jsonl"):
        generations.newest_sound(generations.load)


def test_an_error_that_is_not_the_stores_is_not_taken_for_damage(generations: Generations) -> None:
    _publish(generations, "g1")
    _publish(generations, "g2")

    def load(_: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generations.newest_sound(load)


# Publishing, and going back.


def test_an_unknown_generation_cannot_be_published(generations: Generations) -> None:
    _publish(generations, "g1")
    for unknown in ("g9", "", "../g1"):
        with pytest.raises(InputError, match="retrieval generations list"):
            generations.publish(unknown)
    assert generations.current_id() == "g1"


@pytest.mark.parametrize("what", ["rows.jsonl", "chroma/chroma.sqlite3"])
def test_a_damaged_generation_cannot_be_published(
    tmp_path: Path, generations: Generations, what: str
) -> None:
    _publish(generations, "g1", 1, _space(1))
    _finish(generations, "g2", 2, _space(2))
    path = _folder(tmp_path, "g2") / what
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=f"{Path(what).name}: is damaged"):
        generations.publish("g2")
    assert generations.current_id() == "g1"


def test_an_older_generation_can_be_published_and_the_newer_again(
    generations: Generations,
) -> None:
    first, second = _publish(generations, "g1"), _publish(generations, "g2")
    generations.publish("g1")
    assert generations.current() == first
    generations.publish("g2")
    assert generations.current() == second


def test_the_store_is_told_what_is_served_now(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str | None]] = []
    monkeypatch.setattr(
        generations.vectors,
        "announce",
        lambda generation, _spaces: told.append((generation, generations.current_id())),
    )
    _publish(generations, "g1")
    assert told == [("g1", "g1")]


def test_rollback_publishes_the_one_before_and_names_it(generations: Generations) -> None:
    for n in range(1, 4):
        _publish(generations, f"g{n}")
    assert generations.rollback() == "g2"
    assert generations.current_id() == "g2"
    assert generations.rollback() == "g1"
    assert generations.ids() == ["g1", "g2", "g3"]


def test_rollback_passes_over_a_damaged_one(tmp_path: Path, generations: Generations) -> None:
    for n in range(1, 4):
        _publish(generations, f"g{n}")
    _damage_rows(tmp_path, "g2")
    assert generations.rollback() == "g1"
    assert generations.current_id() == "g1"


def test_rollback_with_nothing_before_is_refused(generations: Generations) -> None:
    with pytest.raises(InputError, match="no generation before"):
        generations.rollback()
    _publish(generations, "g1")
    with pytest.raises(InputError, match="no generation before"):
        generations.rollback()
    assert generations.current_id() == "g1"


def test_rollback_with_only_damaged_ones_before_says_what_is_wrong(
    tmp_path: Path, generations: Generations
) -> None:
    _publish(generations, "g1")
    _publish(generations, "g2")
    _damage_rows(tmp_path, "g1")
    with pytest.raises(StoreError, match=r"g1/rows\.jsonl"):
        generations.rollback()
    assert generations.current_id() == "g2"


# The lock.


def test_a_second_builder_is_refused_at_once_and_the_next_is_not(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    with (
        generations_in(home).lock(),
        pytest.raises(StoreError, match="another ingest is running") as caught,
        generations_in(home).lock(),
    ):
        pass
    assert str(home) in str(caught.value)
    with generations_in(home).lock():
        pass


def test_the_lock_is_free_again_after_a_failure(generations: Generations) -> None:
    with pytest.raises(ZeroDivisionError), generations.lock():
        _ = 1 / 0
    with generations.lock():
        pass


def test_a_home_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file", "utf-8")
    with (
        pytest.raises(StoreError, match="cannot be made a folder") as caught,
        generations_in(tmp_path / "home").lock(),
    ):
        pass
    assert str(tmp_path / "home") in str(caught.value)


def test_the_lock_holds_against_another_process(tmp_path: Path) -> None:
    # Without kb.generations, so that the child starts fast.
    child = (
        "import sys, filelock\n"
        "try: filelock.FileLock(sys.argv[1], timeout=0).acquire()\n"
        "except filelock.Timeout: sys.exit(3)"
    )
    command = [sys.executable, "-c", child, str(tmp_path / "ingest.lock")]
    with generations_in(tmp_path).lock():
        assert subprocess.run(command, check=False).returncode == 3
    assert subprocess.run(command, check=False).returncode == 0


def test_a_manifest_is_readable_by_people_and_other_programs(
    tmp_path: Path, generations: Generations
) -> None:
    _publish(generations, "g1", 1, _space(1))
    data = json.loads((_folder(tmp_path, "g1") / "manifest.json").read_text("utf-8"))
    (space,) = data["manifest"]["spaces"]
    assert space["fingerprint"]["embedder_id"] == "bge-small-en-v1.5"
    assert (space["languages"], space["rows"]) == (["en"], 1)
    assert (tmp_path / "CURRENT").read_text("utf-8") == "g1\n"


def test_a_manifest_names_its_embedders_by_preference() -> None:
    manifest = Manifest("g1", "", 0, "", (_space(0), _space(0, ALSO_BY)))
    assert manifest.embedders == f"{MADE_BY}, {ALSO_BY}"
    assert replace(manifest, spaces=()).embedders == "none"
