"""Kill an ingest at any moment: the old knowledge base is served or the new one, never a mixture.

The processes are real, the SIGKILL is real, and so is what they write.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from fakes_kb import generations_in, read_whole, served_id, text_vector, write_card
from ingest_driver import POINTS, Driver, running_driver
from kb.cards import read_cards
from kb.chunking import split_cards
from kb.types import SubChunk
from running_service import ROOT

pytestmark = pytest.mark.faults

SEED = 12
ROUNDS = 50
CARDS = 60
KEEP = 3
DIMENSION = 16
OLD_AT = [point for point in POINTS if point != "after CURRENT" and "in pruning" not in point]


@dataclass(frozen=True)
class Content:
    """A folder of cards and what a generation of it must hold."""

    cards: Path
    chunks: tuple[SubChunk, ...]

    def hashes(self) -> set[tuple[str, str]]:
        return _hashes(self.chunks)


def _hashes(chunks: tuple[SubChunk, ...]) -> set[tuple[str, str]]:
    return {(chunk.id, hashlib.sha256(chunk.text.encode()).hexdigest()) for chunk in chunks}


def _content(folder: Path, name: str) -> Content:
    """Write cards of which a half is the same for each name; another name has other ids too."""
    for number in range(CARDS):
        text = f"Text {number}{'' if number % 2 else f' of {name}'}."
        write_card(folder / name, f"c{number:02}", text)
    write_card(folder / name, f"only-{name}", "A card of its own.")
    return Content(folder / name, tuple(split_cards(read_cards(folder / name))))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where private copies go, here and in the driver."""
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(scope="module")
def driver(scratch: Path) -> Iterator[Driver]:
    with running_driver(scratch) as driver:
        yield driver


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Content, Content]:
    folder = tmp_path_factory.mktemp("cards")
    return _content(folder, "old"), _content(folder, "new")


def assert_serves(home: Path, *allowed: Content) -> Content:
    """Check that rows and vectors are those of one content, all of them, and say of which."""
    loaded, spaces = read_whole(home)
    found = [content for content in allowed if content.hashes() == _hashes(loaded.chunks)]
    assert len(found) == 1, "rows of neither, or of both"
    assert loaded.chunks == found[0].chunks
    (vectors,) = spaces.values()
    assert vectors.keys() == {chunk.id for chunk in loaded.chunks}
    for chunk in loaded.chunks:
        np.testing.assert_allclose(
            vectors[chunk.id], text_vector(chunk.passage, DIMENSION), atol=1e-6
        )
    return found[0]


def assert_nothing_is_left_over(home: Path, scratch: Path) -> None:
    finished = generations_in(home).ids()
    assert sorted(path.name for path in (home / "generations").iterdir()) == finished
    assert len(finished) <= KEEP
    assert list(home.rglob("*.new")) == []
    assert [path.name for path in scratch.iterdir()] == []


def _where(home: Path, before: set[str], *, published: bool) -> str:
    """Say how far a killed ingest came."""
    if published:
        return "published"
    if set(generations_in(home).ids()) - before:
        return "finished, not published"
    there = {path.name for path in (home / "generations").iterdir()}
    return "building" if there - before else "not started"


def test_fifty_kills_at_random_moments_leave_the_old_or_the_new_and_nothing_else(
    tmp_path: Path, driver: Driver, scratch: Path, contents: tuple[Content, Content]
) -> None:
    home = tmp_path / "kb"
    ends = [driver.ingest(content.cards, home) for content in contents * 2]
    assert [end.code for end in ends] == [0] * 4
    # The first builds from nothing; those after it are what is killed.
    measured = [end.seconds for end in ends[1:]]
    chance = random.Random(SEED)  # noqa: S311
    fell = Counter[str]()
    for number in range(ROUNDS):
        old, new = contents[(number + 1) % 2], contents[number % 2]
        before = {path.name for path in (home / "generations").iterdir()}

        end = driver.ingest(new.cards, home, kill_after=chance.uniform(0, median(measured[-5:])))

        assert end.code in {0, -signal.SIGKILL}
        served = assert_serves(home, old, new)
        if end.code == 0:
            assert served == new
        where = _where(home, before, published=served == new)
        fell["ended before it" if end.code == 0 else where] += 1
        end = driver.ingest(new.cards, home)
        assert end.code == 0
        assert_serves(home, new)
        assert_nothing_is_left_over(home, scratch)
        if where in {"not started", "building"}:  # Then this was an ingest from end to end.
            measured.append(end.seconds)
    print(f"seed {SEED}, {median(measured):.2f} s an ingest; kills: {dict(fell)}")
    assert fell["building"] > 0


@pytest.fixture
def home(tmp_path: Path, full_home: Path) -> Path:
    shutil.copytree(full_home, tmp_path / "kb")
    return tmp_path / "kb"


@pytest.fixture(scope="module")
def full_home(
    tmp_path_factory: pytest.TempPathFactory, driver: Driver, contents: tuple[Content, Content]
) -> Path:
    """A home with as many generations as are kept, the old content served; copy it."""
    old, new = contents
    home = tmp_path_factory.mktemp("full") / "kb"
    for content in (old, new, old):
        assert driver.ingest(content.cards, home).code == 0
    assert len(generations_in(home).ids()) == KEEP
    return home


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_a_named_point_leaves_the_old_or_the_new(
    home: Path, driver: Driver, scratch: Path, contents: tuple[Content, Content], point: str
) -> None:
    old, new = contents
    generations = generations_in(home)
    loaded = generations.load(served_id(home))
    (space,) = loaded.manifest.spaces
    ids = [chunk.id for chunk in loaded.chunks]
    with closing(generations.open_vectors(loaded.manifest)) as reader:
        before = reader.vectors(space.name, ids)

        end = driver.ingest(new.cards, home, die_at=point)

        assert end.code == -signal.SIGKILL
        # Who serves goes on with what it has open.
        np.testing.assert_array_equal(reader.vectors(space.name, ids), before)
    expected, other = (old, new) if point in OLD_AT else (new, old)
    assert_serves(home, expected)
    # Without cleaning, either of the two can be ingested next.
    for content in (expected, other):
        assert driver.ingest(content.cards, home).code == 0
        assert_serves(home, content)
        assert_nothing_is_left_over(home, scratch)


def test_a_first_ingest_that_is_killed_leaves_nothing_to_serve_and_the_next_one_works(
    tmp_path: Path, driver: Driver, scratch: Path, contents: tuple[Content, Content]
) -> None:
    _, new = contents
    for point in OLD_AT[::3]:
        home = tmp_path / point.replace(" ", "-")
        assert driver.ingest(new.cards, home, die_at=point).code == -signal.SIGKILL
        assert generations_in(home).current() is None
        assert driver.ingest(new.cards, home).code == 0
        assert_serves(home, new)
        assert_nothing_is_left_over(home, scratch)


def test_a_second_kill_while_the_next_ingest_cleans_up_leaves_no_more(
    home: Path, driver: Driver, scratch: Path, contents: tuple[Content, Content]
) -> None:
    old, new = contents
    for point in ("before the manifest", "in pruning, after the vectors"):
        # The second dies when it has dropped what the first left.
        assert driver.ingest(new.cards, home, die_at=point).code == -signal.SIGKILL
        assert_serves(home, old)
    assert driver.ingest(new.cards, home).code == 0
    assert_serves(home, new)
    assert_nothing_is_left_over(home, scratch)


def test_the_command_that_is_killed_while_it_builds_is_simply_run_again(
    tmp_path: Path, scratch: Path, contents: tuple[Content, Content]
) -> None:
    old, new = contents
    home = tmp_path / "kb"
    command: list[str | Path] = [sys.executable, "-m", "serve.cli", "ingest", "--kb-home", home]
    command += ["--models", tmp_path / "models", "--set", "embedder_models=", "--cards"]
    environ = {**os.environ, "TMPDIR": str(scratch)}
    subprocess.run([*command, old.cards], cwd=ROOT, env=environ, check=True, capture_output=True)

    with subprocess.Popen([*command, new.cards], cwd=ROOT, env=environ) as process:
        while process.poll() is None and len(list((home / "generations").iterdir())) == 1:
            time.sleep(0.001)
        process.kill()

    assert generations_in(home).load(served_id(home)).chunks in {old.chunks, new.chunks}
    done = subprocess.run(
        [*command, new.cards], cwd=ROOT, env=environ, check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith(f"{len(new.chunks)} rows upserted; generation {served_id(home)} ")
    assert generations_in(home).load(served_id(home)).chunks == new.chunks
    assert_nothing_is_left_over(home, scratch)
