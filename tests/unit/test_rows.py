"""A generation's rows beside its vectors: the same rows, or a refusal that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes_kb import generations_in, served_id, sub_chunk, write_card
from kb.cards import read_cards
from kb.chunking import split_cards
from kb.errors import StoreError
from kb.ingest import ingest
from kb.rows import decode_rows, encode_rows
from kb.types import SubChunk


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for card_id in ("c1", "c2"):
        write_card(tmp_path / "cards", card_id)
    _ingest(tmp_path / "kb")
    return tmp_path / "kb"


def _ingest(home: Path) -> bool:
    """Ingest the cards beside a home; tell whether nothing had to be built."""
    return ingest(home.parent / "cards", generations_in(home), []).unchanged


def _load(home: Path) -> tuple[SubChunk, ...]:
    return generations_in(home).load(served_id(home)).chunks


def _path(home: Path) -> Path:
    return home / "generations" / served_id(home) / "rows.jsonl"


def test_the_rows_that_are_read_are_those_of_the_cards(home: Path) -> None:
    assert list(_load(home)) == split_cards(read_cards(home.parent / "cards"))
    assert len(_load(home)) == 2


def test_the_rows_of_a_long_card_come_by_id(tmp_path: Path) -> None:
    body = "\n".join(f"## Section {number}\nSentence {number}." for number in range(12))
    write_card(tmp_path / "cards", "long", body)
    _ingest(tmp_path / "kb")

    ids = [chunk.id for chunk in _load(tmp_path / "kb")]
    assert len(ids) == 12
    assert ids == sorted(ids)


def test_rows_survive_being_written_and_read(home: Path) -> None:
    chunks = (*_load(home), sub_chunk(3, "«Não» tome\n\u2028\x1b[31m {0}", "pt-BR"))

    assert decode_rows(encode_rows(chunks)) == chunks


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: data.replace(b"c1", b"c3"), lambda _: b""]
)
def test_damaged_rows_are_refused_by_file_and_built_again_by_the_next_ingest(
    home: Path, spoil: Callable[[bytes], bytes]
) -> None:
    path = _path(home)
    path.write_bytes(spoil(path.read_bytes()))

    with pytest.raises(StoreError, match=r"rows\.jsonl: is damaged"):
        _load(home)
    assert not _ingest(home)
    assert len(_load(home)) == 2


def test_missing_rows_are_refused_by_file(home: Path) -> None:
    _path(home).unlink()

    with pytest.raises(StoreError, match=r"rows\.jsonl: is missing"):
        _load(home)
