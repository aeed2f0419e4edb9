"""Ingest: all of the new knowledge base or all of the old."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes_kb import (
    HashEmbedder,
    generations_in,
    read_whole,
    served_id,
    sub_chunk,
    text_vector,
    write_card,
)
from kb.cards import read_cards
from kb.chunking import split_card
from kb.errors import (
    CardError,
    InputError,
    ModelError,
    RetrievalError,
    StageUnavailable,
    StoreError,
)
from kb.ingest import IngestReport
from kb.ingest import ingest as ingest_into
from kb.progress import Progress
from kb.protocols import Embedder
from kb.rows import encode_rows, hash_rows
from kb.stores.chroma_embedded import ChromaEmbeddedWriter
from kb.types import Matrix, Source, SubChunk

SEVERAL = "".join(f"## Part {n}\nSentence number {n}.\n" for n in range(1, 6))
MANY = "".join(f"## Part {n}\nSentence number {n}.\n" for n in range(130))


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    folder = tmp_path / "cards"
    write_card(folder, "c1", SEVERAL)
    write_card(folder, "c2", "Take with food.")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "kb"


def ingest(
    cards: Path,
    home: Path,
    *embedders: Embedder,
    progress: Progress | None = None,
    keep: int = 3,
) -> IngestReport:
    return ingest_into(cards, generations_in(home), embedders, progress, keep)


def _rows(home: Path) -> list[SubChunk]:
    return list(generations_in(home).load(served_id(home)).chunks)


def _passages(home: Path) -> list[str]:
    return [chunk.passage for chunk in _rows(home)]


def _texts(home: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for chunk in _rows(home):
        found.setdefault(chunk.card_id, []).append(chunk.text)
    return found


def _files(home: Path) -> dict[str, bytes]:
    """Read what is published; the lock file and an empty home may come and go."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.name != "ingest.lock"
    }


def test_one_row_a_sub_chunk_is_written_and_counted(cards: Path, home: Path) -> None:
    report = ingest(cards, home, HashEmbedder())
    expected = [chunk for card in read_cards(cards) for chunk in split_card(card)]
    assert _rows(home) == expected
    manifest = generations_in(home).current()
    assert manifest is not None
    assert report == IngestReport(
        rows=len(expected),
        generation=manifest.id,
        embedders="hash (8 dimensions, revision r1)",
        embedded=len(expected),
        unchanged=False,
    )
    assert manifest.rows == 6
    (space,) = manifest.spaces
    assert (space.fingerprint, space.rows) == (HashEmbedder().fingerprint, 6)


def test_each_row_has_the_vector_of_its_own_passage(cards: Path, home: Path) -> None:
    write_card(cards, "c3", MANY)  # More than are embedded at once.
    embedder = HashEmbedder()
    ingest(cards, home, embedder)
    loaded, spaces = read_whole(home)
    (vectors,) = spaces.values()
    assert sorted(embedder.passages) == sorted(_passages(home))
    assert len(vectors) == len(loaded.chunks) == 136
    for chunk in loaded.chunks:
        np.testing.assert_allclose(vectors[chunk.id], text_vector(chunk.passage, 8), atol=1e-6)


def test_progress_ends_with_every_row(cards: Path, home: Path) -> None:
    write_card(cards, "c3", MANY)
    told: list[tuple[str, int, int]] = []
    report = ingest(cards, home, HashEmbedder(), progress=lambda *now: told.append(now))
    assert told[-1] == ("embedding", report.rows, report.rows)
    assert told == sorted(told)
    assert len(told) > 1


def test_a_second_run_changes_nothing_and_embeds_nothing(cards: Path, home: Path) -> None:
    first = ingest(cards, home, HashEmbedder())
    before = _files(home)
    embedder = HashEmbedder()
    second = ingest(cards, home, embedder)
    assert second == replace(first, embedded=0, unchanged=True)
    assert embedder.passages == []
    assert _files(home).keys() == before.keys()
    assert (home / "CURRENT").read_bytes() == before["CURRENT"]


def test_where_the_cards_lie_and_in_which_order_they_were_written_changes_nothing(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write_card(one, "c1", "First.")
    write_card(one, "c2", "Second.")
    write_card(other / "z", "c2", "Second.")
    write_card(other / "a" / "b", "c1", "First.")
    ingest(one, tmp_path / "kb", HashEmbedder())
    assert ingest(other, tmp_path / "kb", HashEmbedder()).unchanged


def test_a_changed_card_gives_a_new_generation_and_the_old_stays_as_it_was(
    cards: Path, home: Path
) -> None:
    first = ingest(cards, home, HashEmbedder())
    before = read_whole(home)
    write_card(cards, "c2", "Take without food.")
    second = ingest(cards, home, HashEmbedder())
    assert not second.unchanged
    assert second.generation > first.generation
    assert _texts(home)["c2"] == ["Take without food."]
    after = read_whole(home, first.generation)
    assert after[0] == before[0]
    np.testing.assert_equal(after[1], before[1])


def test_a_card_that_shrinks_and_goes_takes_its_rows_along(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder())
    assert len(_texts(home)["c1"]) == 5
    write_card(cards, "c1", "## Part 1\nSentence number 1.\n## Part 2\nSentence number 2.\n")
    assert ingest(cards, home, HashEmbedder()).rows == 3
    assert _texts(home)["c1"] == ["Sentence number 1.", "Sentence number 2."]
    (cards / "c1.md").unlink()
    assert ingest(cards, home, HashEmbedder()).rows == 1
    assert "c1" not in _texts(home)
    assert ingest(cards, home, HashEmbedder()).unchanged


def test_the_same_text_in_two_cards_is_two_rows(cards: Path, home: Path) -> None:
    write_card(cards, "c3", "Take with food.")
    ingest(cards, home, HashEmbedder())
    titles = {chunk.title for chunk in _rows(home) if chunk.text == "Take with food."}
    assert titles == {"About c2", "About c3"}


def test_one_card_in_three_languages_is_three_sets_of_rows(tmp_path: Path, home: Path) -> None:
    for locale in ("en", "es-419", "pt-BR"):
        write_card(tmp_path / "cards" / locale, "c1", f"In {locale}.", locale=locale)
    assert ingest(tmp_path / "cards", home, HashEmbedder()).rows == 3
    assert [chunk.id for chunk in _rows(home)] == ["c1:en:1", "c1:es-419:1", "c1:pt-BR:1"]


# S03: nothing to write.


@pytest.mark.parametrize("embedders", [[HashEmbedder()], []], ids=["embedder", "none"])
def test_an_empty_folder_gives_no_rows_and_a_generation_that_opens(
    tmp_path: Path, home: Path, embedders: list[HashEmbedder]
) -> None:
    (tmp_path / "cards").mkdir()
    report = ingest(tmp_path / "cards", home, *embedders)
    assert report.rows == 0
    assert _rows(home) == []
    assert [list(vectors) for vectors in read_whole(home)[1].values()] == [[] for _ in embedders]
    assert ingest(tmp_path / "cards", home, *embedders).unchanged


def test_cards_without_a_body_give_no_rows_and_spoil_no_other(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "cards"
    for name in ("c1", "c2", "c3"):
        write_card(folder, name, "")
    assert ingest(folder, home, HashEmbedder()).rows == 0
    write_card(folder, "c4", "Metformin dose.")
    assert ingest(folder, home, HashEmbedder()).rows == 1
    assert _texts(home) == {"c4": ["Metformin dose."]}


# Embedders.


def test_without_an_embedder_there_are_rows_and_no_vector_space(cards: Path, home: Path) -> None:
    report = ingest(cards, home)
    assert (report.rows, report.embedded, report.embedders) == (6, 0, "none")
    manifest = generations_in(home).current()
    assert manifest is not None
    assert manifest.spaces == ()
    assert len(_rows(home)) == 6
    assert ingest(cards, home).unchanged


def test_another_embedder_gives_a_new_generation_with_its_own_vectors(
    cards: Path, home: Path
) -> None:
    choices = [[], [HashEmbedder(8)], [HashEmbedder(16)], [HashEmbedder(16, "other")]]
    seen = [ingest(cards, home, *embedders, keep=4).generation for embedders in choices]
    assert len(set(seen)) == 4
    for generation_id, dimension in zip(seen[1:], (8, 16, 16), strict=True):
        (vectors,) = read_whole(home, generation_id)[1].values()
        assert {vector.shape for vector in vectors.values()} == {(dimension,)}


# What fails leaves all as it was.


def _bad_card(cards: Path) -> None:
    (cards / "c3.md").write_text("---\nid: c3\n---\n", "utf-8")


def _duplicate(cards: Path) -> None:
    write_card(cards / "again", "c1")


def _linked(cards: Path) -> None:
    (cards / "again.md").symlink_to(cards / "c1.md")


@pytest.mark.parametrize("spoil", [_bad_card, _duplicate, _linked])
def test_bad_input_changes_nothing_and_the_next_run_works(
    cards: Path, home: Path, spoil: Callable[[Path], None]
) -> None:
    ingest(cards, home, HashEmbedder())
    before = _files(home)
    write_card(cards, "c0", "Something new.")
    spoil(cards)
    with pytest.raises(InputError):
        ingest(cards, home, HashEmbedder())
    assert _files(home).keys() == before.keys()
    assert (home / "CURRENT").read_bytes() == before["CURRENT"]
    for path in (cards / "c3.md", cards / "again" / "c1.md", cards / "again.md"):
        path.unlink(missing_ok=True)
    assert ingest(cards, home, HashEmbedder()).rows == 7


def test_bad_input_to_a_new_home_writes_nothing_at_all(cards: Path, home: Path) -> None:
    _bad_card(cards)
    with pytest.raises(CardError, match=r"c3\.md:1"):
        ingest(cards, home, HashEmbedder())
    assert not home.exists()


def test_duplicate_ids_name_both_files_and_write_nothing_at_all(cards: Path, home: Path) -> None:
    _duplicate(cards)
    embedder = HashEmbedder()
    with pytest.raises(InputError) as caught:
        ingest(cards, home, embedder)
    assert str(cards / "c1.md") in str(caught.value)
    assert str(cards / "again" / "c1.md") in str(caught.value)
    assert embedder.passages == []
    assert not home.exists()


def test_a_missing_card_folder_writes_nothing_at_all(tmp_path: Path, home: Path) -> None:
    with pytest.raises(InputError, match="no such card folder"):
        ingest(tmp_path / "none", home, HashEmbedder())
    assert not home.exists()


FAILURES: dict[str, tuple[BaseException, type[BaseException]]] = {
    "a model error": (ModelError("voyage-3.5: RateLimitError"), ModelError),
    "a broken vector": (StageUnavailable("dense", "broken_vector"), StoreError),
    "a fault of its own": (RuntimeError("out of memory"), RuntimeError),
    "Ctrl-C": (KeyboardInterrupt(), KeyboardInterrupt),
}


@pytest.mark.parametrize(("error", "seen"), FAILURES.values(), ids=FAILURES)
def test_an_embedder_that_fails_midway_changes_nothing_and_the_next_run_works(
    cards: Path, home: Path, error: BaseException, seen: type[BaseException]
) -> None:
    first = ingest(cards, home, HashEmbedder())
    before = _files(home)
    write_card(cards, "c3", MANY)
    with pytest.raises(seen):
        ingest(cards, home, HashEmbedder(fail_on_call=2, error=error))
    assert _files(home).keys() == before.keys()
    assert (home / "CURRENT").read_bytes() == before["CURRENT"]
    assert len(read_whole(home, first.generation)[0].chunks) == 6
    report = ingest(cards, home, HashEmbedder())
    assert (report.rows, report.unchanged) == (136, False)
    assert len(_rows(home)) == 136


class _Miscounting(HashEmbedder):
    """Give other rows than there are passages, or of another size."""

    def __init__(self, change: Callable[[Matrix], Matrix]) -> None:
        super().__init__()
        self._change = change

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        return self._change(super().embed_passages(texts))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[:-1],
        lambda rows: rows[:0],
        lambda rows: np.concatenate([rows, rows]),
        lambda rows: rows[:, :-1],
        lambda rows: rows[0],
    ],
    ids=["one too few", "none", "twice as many", "too narrow", "a single vector"],
)
def test_an_embedder_that_miscounts_is_an_error_of_ours_and_publishes_nothing(
    cards: Path, home: Path, change: Callable[[Matrix], Matrix]
) -> None:
    first = ingest(cards, home, HashEmbedder())
    write_card(cards, "c3", "New.")
    with pytest.raises(RetrievalError):
        ingest(cards, home, _Miscounting(change))
    assert served_id(home) == first.generation
    assert ingest(cards, home, HashEmbedder()).rows == 7


def test_rows_too_many_in_one_call_never_make_up_for_rows_too_few_in_the_next(
    cards: Path, home: Path
) -> None:
    write_card(cards, "c3", MANY)

    def shift(rows: Matrix) -> Matrix:
        # Two calls: one of 128 passages, and the rest.
        return np.concatenate([rows, rows[:1]]) if len(rows) == 128 else rows[:-1]

    with pytest.raises(RetrievalError):
        ingest(cards, home, _Miscounting(shift))
    assert generations_in(home).current() is None


Write = Callable[[ChromaEmbeddedWriter, str, Sequence[str], Matrix], None]
_write: Write = ChromaEmbeddedWriter.upsert


def _write_half(
    writer: ChromaEmbeddedWriter, space: str, chunk_ids: Sequence[str], vectors: Matrix
) -> None:
    half = len(chunk_ids) // 2
    _write(writer, space, chunk_ids[:half], vectors[:half])


def _write_other_ids(
    writer: ChromaEmbeddedWriter, space: str, chunk_ids: Sequence[str], vectors: Matrix
) -> None:
    _write(writer, space, [f"{chunk_id}x" for chunk_id in chunk_ids], vectors)


def _fill_the_disk(
    writer: ChromaEmbeddedWriter, space: str, chunk_ids: Sequence[str], vectors: Matrix
) -> None:
    _write_half(writer, space, chunk_ids, vectors)
    raise StoreError("database or disk is full")


@pytest.mark.parametrize("write", [_write_half, _write_other_ids, _fill_the_disk])
def test_a_store_that_does_not_keep_what_it_is_given_is_never_published(
    cards: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Write,
) -> None:
    first = ingest(cards, home, HashEmbedder())
    write_card(cards, "c3", "New.")
    with monkeypatch.context() as patch:
        patch.setattr(ChromaEmbeddedWriter, "upsert", write)
        with pytest.raises(StoreError):
            ingest(cards, home, HashEmbedder())
    assert served_id(home) == first.generation
    assert len(_rows(home)) == 6
    second = ingest(cards, home, HashEmbedder())
    names = {path.name for path in (home / "generations").iterdir()}
    assert names == {first.generation, second.generation}
    assert len(_rows(home)) == second.rows == 7


def test_what_a_killed_run_left_is_removed_by_the_next(cards: Path, home: Path) -> None:
    first = ingest(cards, home, HashEmbedder())
    left = home / "generations" / "2026-01-01T00-00-00-000000Z-abcdef" / "chroma"
    left.mkdir(parents=True)
    (left / "chroma.sqlite3").write_bytes(b"half a database")
    (home / "CURRENT.new").write_text("half", "utf-8")
    write_card(cards, "c3", "New.")
    second = ingest(cards, home, HashEmbedder())
    names = {path.name for path in (home / "generations").iterdir()}
    assert names == {first.generation, second.generation}
    assert served_id(home) == second.generation


def test_a_second_ingest_is_refused_while_one_runs(cards: Path, home: Path) -> None:
    first = ingest(cards, home, HashEmbedder())
    write_card(cards, "c3", "New.")
    with (
        generations_in(home).lock(),
        pytest.raises(StoreError, match="another ingest is running"),
    ):
        ingest(cards, home, HashEmbedder())
    assert served_id(home) == first.generation
    assert ingest(cards, home, HashEmbedder()).rows == 7


def test_only_the_last_three_generations_are_kept(cards: Path, home: Path) -> None:
    made = []
    for n in range(4):
        write_card(cards, "c2", f"Version {n}.")
        made.append(ingest(cards, home).generation)
    assert {path.name for path in (home / "generations").iterdir()} == set(made[1:])
    assert _texts(home)["c2"] == ["Version 3."]


# An ingest repairs.


def _of(home: Path, name: str) -> Path:
    return home / "generations" / served_id(home) / name


def _spoil_manifest(home: Path) -> None:
    _of(home, "manifest.json").write_bytes(b"null")


def _spoil_manifest_text(home: Path) -> None:
    _of(home, "manifest.json").write_bytes(b'{"id": 1')


def _lose_manifest(home: Path) -> None:
    _of(home, "manifest.json").unlink()


def _misstate_rows(home: Path) -> None:
    path = _of(home, "manifest.json")
    path.write_text(path.read_text("utf-8").replace('"rows": 6', '"rows": 7'), "utf-8")


def _spoil_rows(home: Path) -> None:
    _of(home, "rows.jsonl").write_bytes(b"{}\n")


def _lose_store(home: Path) -> None:
    _of(home, "chroma/chroma.sqlite3").unlink()


def _cut_store(home: Path) -> None:
    _of(home, "chroma/chroma.sqlite3").write_bytes(b"SQLite")


def _spoil_index(home: Path) -> None:
    (path,) = _of(home, "chroma").glob("*/data_level0.bin")
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xff" + data[101:])


@pytest.mark.parametrize(
    "spoil",
    [
        _spoil_manifest,
        _spoil_manifest_text,
        _lose_manifest,
        _misstate_rows,
        _spoil_rows,
        _lose_store,
        _cut_store,
        _spoil_index,
    ],
)
def test_a_damaged_generation_is_built_again_as_its_message_says(
    cards: Path, home: Path, spoil: Callable[[Path], None]
) -> None:
    ingest(cards, home, HashEmbedder())
    spoil(home)
    with pytest.raises(StoreError, match="retrieval ingest"):
        read_whole(home)
    embedder = HashEmbedder()
    report = ingest(cards, home, embedder)
    assert not report.unchanged
    assert report.embedded == len(embedder.passages) == 6
    assert len(read_whole(home)[0].chunks) == report.rows == 6


def test_a_damaged_generation_is_built_again_from_the_vectors_of_the_one_before(
    cards: Path, home: Path
) -> None:
    ingest(cards, home, HashEmbedder())
    write_card(cards, "c3", "New.")
    damaged = ingest(cards, home, HashEmbedder()).generation
    _cut_store(home)
    embedder = HashEmbedder()
    report = ingest(cards, home, embedder)
    assert report.generation > damaged
    assert embedder.passages == ["About c3: New."]
    assert len(read_whole(home)[0].chunks) == 7


def test_a_damaged_generation_gives_way_to_the_one_before_when_that_holds_the_same(
    cards: Path, home: Path
) -> None:
    first = ingest(cards, home, HashEmbedder()).generation
    write_card(cards, "c2", "Something else.")
    ingest(cards, home, HashEmbedder())
    _cut_store(home)
    write_card(cards, "c2", "Take with food.")
    embedder = HashEmbedder()
    assert ingest(cards, home, embedder).generation == first
    assert served_id(home) == first
    assert embedder.passages == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"g\x001", b"none-such\n"])
def test_a_damaged_pointer_is_set_again_without_embedding(
    cards: Path, home: Path, content: bytes
) -> None:
    first = ingest(cards, home, HashEmbedder())
    (home / "CURRENT").write_bytes(content)
    with pytest.raises(StoreError, match="retrieval ingest"):
        generations_in(home).current()
    embedder = HashEmbedder()
    assert ingest(cards, home, embedder).generation == first.generation
    assert served_id(home) == first.generation
    assert embedder.passages == []


# What a generation is made from.


def test_every_field_of_a_row_is_in_the_content_hash() -> None:
    row = sub_chunk(1)
    changed = [
        replace(row, id="x"),
        replace(row, card_id="x"),
        replace(row, locale="pt-BR"),
        replace(row, ordinal=2),
        replace(row, title="x"),
        replace(row, category="adherence-barrier"),
        replace(row, section="x"),
        replace(row, text="x"),
        replace(row, drugs=()),
        replace(row, sources=(Source("x", "https://example.org", "CC0 1.0"),)),
    ]
    hashes = {hash_rows(encode_rows([one])) for one in [row, *changed]}
    assert len(hashes) == 1 + len(changed)
    assert hash_rows(encode_rows([row])) == hash_rows(encode_rows([sub_chunk(1)]))


def test_rows_and_their_order_are_in_the_content_hash() -> None:
    one, other = sub_chunk(1), sub_chunk(2)
    rows: list[list[SubChunk]] = [[], [one], [one, other], [other, one], [one, one]]
    assert len({hash_rows(encode_rows(some)) for some in rows}) == len(rows)
