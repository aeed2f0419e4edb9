"""Documents as files: whole or not there, and what goes wrong is said by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.errors import StoreError
from kb.stores.folder import FolderDocuments

ROWS = "generations/g1/rows.jsonl"


@pytest.fixture
def documents(tmp_path: Path) -> FolderDocuments:
    return FolderDocuments(tmp_path / "kb")


def test_reading_makes_nothing(tmp_path: Path, documents: FolderDocuments) -> None:
    assert documents.get("CURRENT") is None
    assert documents.get(ROWS) is None
    assert documents.names() == []
    documents.delete(ROWS)
    assert not (tmp_path / "kb").exists()


def test_a_document_is_a_file_of_its_name(tmp_path: Path, documents: FolderDocuments) -> None:
    documents.put(ROWS, b"one\n\xff")
    documents.put("CURRENT", b"g1\n")
    assert (tmp_path / "kb" / ROWS).read_bytes() == b"one\n\xff"
    assert documents.get(ROWS) == b"one\n\xff"
    assert documents.names() == ["CURRENT", ROWS]


def test_a_document_is_replaced_and_what_was_open_stays_as_it_was(
    tmp_path: Path, documents: FolderDocuments
) -> None:
    documents.put("CURRENT", b"g1\n")
    with (tmp_path / "kb" / "CURRENT").open("rb") as reader:
        documents.put("CURRENT", b"g2\n")
        assert reader.read() == b"g1\n"
    assert documents.get("CURRENT") == b"g2\n"
    assert not list(tmp_path.rglob("*.new"))


def test_a_document_is_deleted_once_or_twice(documents: FolderDocuments) -> None:
    documents.put(ROWS, b"")
    assert documents.get(ROWS) == b""
    documents.delete(ROWS)
    documents.delete(ROWS)
    assert documents.get(ROWS) is None
    assert documents.names() == []


def test_the_vectors_beside_a_document_and_half_a_write_are_no_documents(
    tmp_path: Path, documents: FolderDocuments
) -> None:
    documents.put(ROWS, b"")
    folder = tmp_path / "kb" / "generations" / "g1"
    (folder / "chroma").mkdir()
    (folder / "chroma" / "chroma.sqlite3").write_bytes(b"")
    (folder / "manifest.json.new").write_bytes(b"{")
    (tmp_path / "kb" / "ingest.lock").write_bytes(b"")
    assert documents.names() == [ROWS]


def test_half_a_write_of_the_pointer_is_named_so_that_it_can_be_deleted(
    tmp_path: Path, documents: FolderDocuments
) -> None:
    documents.put("CURRENT", b"g1\n")
    (tmp_path / "kb" / "CURRENT.new").write_bytes(b"g")
    assert documents.names() == ["CURRENT", "CURRENT.new"]
    documents.delete("CURRENT.new")
    assert documents.names() == ["CURRENT"]


def test_a_write_that_fails_leaves_the_old_document_and_names_the_path(
    tmp_path: Path, documents: FolderDocuments
) -> None:
    documents.put("CURRENT", b"g1\n")
    (tmp_path / "kb" / "CURRENT.new").mkdir()  # Root may write anywhere, but not into a folder.
    with pytest.raises(StoreError, match="cannot be written") as caught:
        documents.put("CURRENT", b"g2\n")
    assert str(tmp_path / "kb" / "CURRENT") in str(caught.value)
    assert documents.get("CURRENT") == b"g1\n"


def test_a_document_that_cannot_be_read_or_deleted_is_named(
    tmp_path: Path, documents: FolderDocuments
) -> None:
    path = tmp_path / "kb" / ROWS
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be read") as reading:
        documents.get(ROWS)
    with pytest.raises(StoreError, match="cannot be deleted") as deleting:
        documents.delete(ROWS)
    for caught in (reading, deleting):
        assert str(path) in str(caught.value)


def test_a_home_that_is_a_file_holds_nothing_and_takes_nothing(
    tmp_path: Path, documents: FolderDocuments
) -> None:
    (tmp_path / "kb").write_bytes(b"")
    assert documents.get(ROWS) is None
    assert documents.names() == []
    documents.delete(ROWS)
    with pytest.raises(StoreError, match="cannot be written"):
        documents.put(ROWS, b"")
