"""What a new generation must pass: every count right, every row within reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fakes_kb import HashEmbedder, MemoryVectors, sub_chunk, text_vector
from kb import checks
from kb.build import Written
from kb.canaries import Canary
from kb.checks import CANARY_CARDS, check_canaries, check_rows
from kb.errors import StoreError
from kb.types import Fingerprint, Hit, Locale, SubChunk, Vector, VectorSpace

DIMENSION = 8


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read eight rows at once, so that there are several pages."""
    monkeypatch.setattr(checks, "_PAGE", 8)


def _space(rows: int, languages: tuple[str, ...] = ()) -> VectorSpace:
    return VectorSpace(Fingerprint("hash", "r1", DIMENSION, "", ""), languages, rows)


NAME = _space(0).name


def _chunks(count: int, locale: Locale = "en") -> list[SubChunk]:
    return [sub_chunk(n, locale=locale) for n in range(count)]


def _reader(chunks: Sequence[SubChunk]) -> MemoryVectors:
    return MemoryVectors({NAME: {c.id: text_vector(c.passage, DIMENSION) for c in chunks}})


def _ids(chunks: Sequence[SubChunk]) -> list[str]:
    return [chunk.id for chunk in chunks]


@pytest.mark.parametrize("count", [0, 1, 5, 250])
def test_a_whole_space_passes(count: int) -> None:
    chunks = _chunks(count)
    reader = _reader(chunks)
    check_rows(reader, _space(count), chunks, Written(_ids(chunks)))
    check_rows(reader, _space(count), chunks, Written())


@pytest.mark.parametrize("expected", [4, 6])
def test_another_count_than_was_written_is_said_with_both(expected: int) -> None:
    chunks = _chunks(5)
    with pytest.raises(StoreError, match=f"wrote {expected} rows, the store holds 5"):
        check_rows(_reader(chunks), _space(expected), chunks, Written(_ids(chunks)))


# A space that is searched row by row: the rows themselves count.


@pytest.mark.parametrize("value", [0.0, 0.5, 2.0, float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 7, 8])
def test_a_row_that_is_not_of_unit_length_is_named(value: float, place: int) -> None:
    chunks = _chunks(9)
    reader = _reader(chunks)
    reader.spaces[NAME][chunks[place].id] = np.asarray([value] + [0.0] * 7, np.float32)
    with pytest.raises(StoreError, match=f"does not reach {chunks[place].id}; nothing"):
        check_rows(reader, _space(9), chunks, Written())


def test_a_row_that_is_not_there_is_an_error_even_when_the_count_is_right() -> None:
    chunks = _chunks(5)
    reader = _reader([*chunks[:4], sub_chunk(9)])
    with pytest.raises(StoreError, match=chunks[4].id):
        check_rows(reader, _space(5), chunks, Written())


def test_rows_that_the_space_does_not_cover_are_not_looked_for() -> None:
    chunks = [*_chunks(3), *_chunks(3, "pt-BR")]
    check_rows(_reader(chunks[:3]), _space(3, ("en",)), chunks, Written(_ids(chunks[:3])))


def test_a_vector_that_is_not_what_the_embedder_made_is_named() -> None:
    chunks = _chunks(3)
    reader = _reader(chunks)
    made = {i: reader.spaces[NAME][i] for i in _ids(chunks)}
    check_rows(reader, _space(3), chunks, Written(_ids(chunks), 3, samples=made))
    other = made | {chunks[1].id: -made[chunks[1].id]}
    with pytest.raises(StoreError, match=f"another vector of {chunks[1].id}"):
        check_rows(reader, _space(3), chunks, Written(_ids(chunks), 3, samples=other))


# A space that is searched by an index: it must reach the rows.


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every space for a large one."""
    monkeypatch.setattr(checks, "EXACT_ROWS", -1)


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize("count", [0, 1, 5, 250])
def test_a_whole_index_passes(count: int) -> None:
    chunks = _chunks(count)
    check_rows(_reader(chunks), _space(count), chunks, Written(_ids(chunks)))
    check_rows(_reader(chunks), _space(count), chunks, Written())


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize(("count", "place"), [(1, 0), (5, 0), (5, 4), (50, 49)])
def test_a_written_row_that_no_search_reaches_is_kept_apart(count: int, place: int) -> None:
    chunks = _chunks(count)
    reader = _reader(chunks)
    reader.lost = {chunks[place].id}
    apart = check_rows(reader, _space(count), chunks, Written(_ids(chunks)))
    assert apart == (chunks[place].id,)


@pytest.mark.usefixtures("indexed")
def test_up_to_two_hundred_unchanged_rows_are_searched_for_too() -> None:
    chunks = _chunks(200)
    reader = _reader(chunks)
    reader.lost = {chunks[123].id}
    assert check_rows(reader, _space(200), chunks, Written()) == (chunks[123].id,)


@pytest.mark.usefixtures("indexed")
def test_what_the_base_kept_apart_is_looked_for_again_while_it_is_there() -> None:
    chunks = _chunks(300)
    reader = _reader(chunks)
    unsampled = next(i for i in _ids(chunks) if check_rows_misses(chunks, i))
    reader.lost = {unsampled}
    assert check_rows(reader, _space(300), chunks, Written()) == ()
    kept = Written(apart=(unsampled, "gone:en:1"))
    assert check_rows(reader, _space(300), chunks, kept) == (unsampled,)


def check_rows_misses(chunks: Sequence[SubChunk], chunk_id: str) -> bool:
    """Tell whether the sample leaves a row out."""
    reader = _reader(chunks)
    reader.lost = {chunk_id}
    return not check_rows(reader, _space(len(chunks)), chunks, Written())


@pytest.mark.usefixtures("indexed")
def test_an_index_that_loses_more_than_a_few_rows_is_refused() -> None:
    chunks = _chunks(50)
    reader = _reader(chunks)
    reader.lost = set(_ids(chunks)[:11])
    with pytest.raises(StoreError, match=f"does not reach {chunks[0].id}; nothing"):
        check_rows(reader, _space(50), chunks, Written(_ids(chunks)))


class _Counting(MemoryVectors):
    """Keep what was asked."""

    def __init__(self, spaces: dict[str, dict[str, Vector]]) -> None:
        super().__init__(spaces)
        self.asked: list[Vector] = []

    def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
        self.asked.append(vector)
        return super().search(space, vector, depth)


@pytest.mark.usefixtures("indexed")
def test_of_many_unchanged_rows_a_sample_is_searched_for_and_of_the_changed_all() -> None:
    chunks = _chunks(500)
    reader = _Counting(_reader(chunks).spaces)
    check_rows(reader, _space(500), chunks, Written(_ids(chunks)[:100]))
    assert len(reader.asked) == 100 + 200
    asked = {vector.tobytes() for vector in reader.asked}
    assert asked >= {reader.spaces[NAME][chunk.id].tobytes() for chunk in chunks[:100]}


def test_a_small_space_is_not_searched() -> None:
    chunks = _chunks(50)
    reader = _Counting(_reader(chunks).spaces)
    check_rows(reader, _space(50), chunks, Written(_ids(chunks)))
    assert reader.asked == []


@pytest.mark.usefixtures("indexed")
def test_rows_of_the_same_text_may_crowd_each_other_out() -> None:
    # Twelve rows as near as can be, and a search gives ten.
    chunks = _chunks(12)
    vector = text_vector("the same", DIMENSION)
    reader = MemoryVectors({NAME: dict.fromkeys(_ids(chunks), vector)})
    check_rows(reader, _space(12), chunks, Written(_ids(chunks)))


# Canaries.


class _Facing(HashEmbedder):
    """Embed every query in one direction."""

    def __init__(self, vector: Vector) -> None:
        super().__init__(len(vector))
        self._vector = vector

    def embed_query(self, text: str) -> Vector:
        assert text
        return self._vector


def _canary(card_id: str, locale: Locale = "en") -> Canary:
    return Canary("a question", card_id, locale, "canaries.yaml (entry 1)")


def _fan(count: int) -> tuple[list[SubChunk], MemoryVectors, _Facing]:
    """Make cards that turn away from the query, one after the other."""
    chunks = _chunks(count)
    angles = np.linspace(0, np.pi / 2, count)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    reader = MemoryVectors({NAME: dict(zip(_ids(chunks), rows, strict=True))})
    return chunks, reader, _Facing(rows[0])


def test_a_canary_passes_among_the_first_five_cards_and_not_after() -> None:
    chunks, reader, embedder = _fan(CANARY_CARDS + 1)
    *near, far = chunks
    check_canaries(reader, _space(6), chunks, embedder, [_canary(c.card_id) for c in near])
    with pytest.raises(StoreError, match=rf"entry 1\).*{far.card_id}.*nothing is published"):
        check_canaries(reader, _space(6), chunks, embedder, [_canary(far.card_id)])


def test_cards_are_counted_and_not_their_rows() -> None:
    chunks, reader, embedder = _fan(12)
    # The first ten rows are of one card.
    one = [*(replace(chunk, card_id="long") for chunk in chunks[:10]), *chunks[10:]]
    check_canaries(reader, _space(12), one, embedder, [_canary("card-11")])


def test_a_canary_of_another_language_is_not_asked() -> None:
    chunks, reader, embedder = _fan(CANARY_CARDS + 1)
    far = chunks[-1].card_id
    check_canaries(reader, _space(6, ("en",)), chunks, embedder, [_canary(far, "es-419")])
    with pytest.raises(StoreError, match=far):
        check_canaries(reader, _space(6), chunks, embedder, [_canary(far, "es-419")])


def test_a_canary_of_an_empty_space_finds_nothing() -> None:
    reader = MemoryVectors({NAME: {}})
    with pytest.raises(StoreError, match="does not find c1"):
        check_canaries(reader, _space(0), [], HashEmbedder(), [_canary("c1")])
