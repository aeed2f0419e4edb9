"""A generation's rows beside its store: the same rows, or a refusal that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes_kb import write_card
from kb.errors import StoreError
from kb.generations import Generations, load_generation, load_rows
from kb.ingest import ingest
from kb.rows import decode_rows, encode_rows


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for card_id in ("c1", "c2"):
        write_card(tmp_path / "cards", card_id)
    ingest(tmp_path / "cards", tmp_path / "kb", None)
    return tmp_path / "kb"


def _generation(home: Path) -> str:
    manifest = Generations(home).current()
    assert manifest is not None
    return manifest.id


def test_the_rows_beside_the_store_are_those_of_the_store(home: Path) -> None:
    stored, _ = load_generation(home, _generation(home))

    assert load_rows(home, _generation(home)) == stored
    assert len(stored.chunks) > 0


def test_the_rows_of_a_long_card_have_the_same_order_in_both(tmp_path: Path) -> None:
    body = "\n".join(f"## Section {number}\nSentence {number}." for number in range(12))
    write_card(tmp_path / "cards", "long", body)
    made = ingest(tmp_path / "cards", tmp_path / "kb", None).generation

    stored, _ = load_generation(tmp_path / "kb", made)
    assert load_rows(tmp_path / "kb", made).chunks == stored.chunks
    assert len(stored.chunks) == 12


def test_rows_survive_being_written_and_read(home: Path) -> None:
    chunks = load_rows(home, _generation(home)).chunks

    assert decode_rows(encode_rows(chunks)) == chunks


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-20], lambda data: data.replace(b"c1", b"c3")]
)
def test_damaged_rows_are_refused_by_file_and_built_again_by_the_next_ingest(
    home: Path, spoil: Callable[[bytes], bytes]
) -> None:
    path = Generations(home).folder(_generation(home)) / "rows.jsonl"
    path.write_bytes(spoil(path.read_bytes()))

    with pytest.raises(StoreError, match=r"rows\.jsonl"):
        load_rows(home, _generation(home))
    assert not ingest(home.parent / "cards", home, None).unchanged
    assert load_rows(home, _generation(home)).chunks


def test_missing_rows_are_refused_by_file(home: Path) -> None:
    (Generations(home).folder(_generation(home)) / "rows.jsonl").unlink()

    with pytest.raises(StoreError, match=r"rows\.jsonl"):
        load_rows(home, _generation(home))
