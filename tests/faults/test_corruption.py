"""Damage any file of what is served: it is refused by name, and the generation before it serves."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fakes_kb import HashEmbedder, generations_in, read_whole, served_id, text_vector, write_card
from kb.errors import StoreError
from kb.generations import Generations, LoadedGeneration
from kb.ingest import ingest
from kb.types import Matrix

pytestmark = pytest.mark.faults

SEEDS = range(50)
DIMENSION = 16


def _seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311


def _truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def _flip(path: Path, chance: random.Random) -> None:
    """Change up to 100 bytes, one at least."""
    data = bytearray(path.read_bytes())
    for place in chance.sample(range(len(data)), min(chance.randint(1, 100), len(data))):
        data[place] ^= chance.randint(1, 255)
    path.write_bytes(data)


def _lengthen(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randint(1, 5000)))


def _delete(path: Path, _: random.Random) -> None:
    path.unlink()


def _damage(folder: Path, chance: random.Random) -> Path:
    """Do something to one file of a generation, any of them, and give its path."""
    path = chance.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
    whole: list[Callable[[Path, random.Random], None]] = [_truncate, _flip, _lengthen, _delete]
    # Chroma keeps an empty file: there is nothing to cut off or to change.
    kinds = whole if path.stat().st_size else [_lengthen, _delete]
    chance.choice(kinds)(path, chance)
    return path


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    for number in range(20):
        write_card(folder, f"c{number:02}", f"Text {number}.")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cards: Path) -> Path:
    """A home of two generations, of other rows each; copy it."""
    home = tmp_path_factory.mktemp("whole") / "kb"
    before = home.parent / "before"
    shutil.copytree(cards, before)
    write_card(before, "c00", "As it was before.")
    for folder in (before, cards):
        ingest(folder, generations_in(home), [HashEmbedder(DIMENSION)])
    assert len(generations_in(home).ids()) == 2
    return home


@pytest.fixture
def home(tmp_path: Path, whole: Path) -> Path:
    shutil.copytree(whole, tmp_path / "kb")
    return tmp_path / "kb"


def _loader(generations: Generations) -> Callable[[str], tuple[LoadedGeneration, Matrix]]:
    """Load as the service does: the rows, and every vector."""

    def load(generation_id: str) -> tuple[LoadedGeneration, Matrix]:
        loaded = generations.load(generation_id)
        (space,) = loaded.manifest.spaces
        reader = generations.open_vectors(loaded.manifest)
        try:
            return loaded, reader.vectors(space.name, [chunk.id for chunk in loaded.chunks])
        finally:
            reader.close()

    return load


def _folder(home: Path, generation_id: str) -> Path:
    return home / "generations" / generation_id


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_file_is_named_and_the_generation_before_is_served_whole(
    home: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    generations = generations_in(home)
    previous, published = generations.ids()
    damaged = _damage(_folder(home, published), _seeded(seed))

    with caplog.at_level(logging.WARNING):
        generation_id, (loaded, vectors) = generations.newest_sound(_loader(generations))

    assert generation_id == loaded.manifest.id == previous
    assert "As it was before." in {chunk.text for chunk in loaded.chunks}
    expected = np.stack([text_vector(chunk.passage, DIMENSION) for chunk in loaded.chunks])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert published in warning
    assert str(damaged.relative_to(_folder(home, published))) in warning
    with pytest.raises(StoreError):
        generations.verify(published)


def test_what_is_sound_passes(home: Path) -> None:
    generations = generations_in(home)
    assert generations.newest_sound(_loader(generations))[0] == served_id(home)


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_when_both_are_damaged_the_reason_is_the_published_ones(home: Path, seed: int) -> None:
    generations = generations_in(home)
    previous, published = generations.ids()
    chance = _seeded(seed)
    _damage(_folder(home, previous), chance)
    damaged = _damage(_folder(home, published), chance)

    with pytest.raises(StoreError) as caught:
        generations.newest_sound(_loader(generations))

    assert str(damaged.relative_to(home)) in str(caught.value)
    assert "retrieval ingest" in str(caught.value)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("seed", SEEDS[:5])
def test_the_next_ingest_repairs(home: Path, cards: Path, seed: int, both: bool) -> None:
    previous, published = generations_in(home).ids()
    chance = _seeded(seed)
    _damage(_folder(home, published), chance)
    if both:
        _damage(_folder(home, previous), chance)
    embedder = HashEmbedder(DIMENSION)

    report = ingest(cards, generations_in(home), [embedder])

    # All that is taken over comes from what is sound.
    assert report.embedded == len(embedder.passages) == (20 if both else 1)
    assert served_id(home) == report.generation not in {previous, published}
    loaded, spaces = read_whole(home)
    (vectors,) = spaces.values()
    assert {chunk.text for chunk in loaded.chunks} == {f"Text {n}." for n in range(20)}
    for chunk in loaded.chunks:
        np.testing.assert_allclose(
            vectors[chunk.id], text_vector(chunk.passage, DIMENSION), atol=1e-6
        )
