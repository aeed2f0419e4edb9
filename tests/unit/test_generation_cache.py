"""What generations a replica has at hand."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deployments.engines.generation_cache import HELD_AT_MOST, IN_USE_S, GenerationCache
from fakes_kb import HashEmbedder, write_card
from fakes_serve import FakeClock
from kb.errors import StageUnavailable, StoreError
from kb.generations import Generations
from kb.ingest import ingest
from kb.stores.factory import StoreConfig, open_generations


class Builder:
    """Build a text for an engine; ids in ``broken`` cannot be built."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.broken: set[str] = set()
        self.done = threading.Event()

    def __call__(self, generation: str) -> str:
        if generation in self.broken:
            raise StoreError(f"{generation} is damaged")
        self.built.append(generation)
        self.done.set()
        return f"engine of {generation}"


@pytest.fixture
def generations(tmp_path: Path) -> Generations:
    return open_generations(StoreConfig(tmp_path / "kb"))


@pytest.fixture
def builder() -> Builder:
    return Builder()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cache(generations: Generations, builder: Builder, clock: FakeClock) -> GenerationCache[str]:
    return GenerationCache("bm25", generations, builder, clock)


def test_a_loaded_generation_is_at_hand_and_loaded_once(
    cache: GenerationCache[str], builder: Builder
) -> None:
    assert cache.load("g1") == cache.load("g1") == ""
    assert cache.get("g1") == "engine of g1"
    assert builder.built == ["g1"]


def test_two_are_always_held_and_others_go_when_nobody_asks_for_them(
    cache: GenerationCache[str], clock: FakeClock
) -> None:
    for name in ("g1", "g2"):
        cache.load(name)
    clock.advance(IN_USE_S - 1)
    cache.get("g1")
    clock.advance(2)
    cache.load("g3")  # g1 was asked for a moment ago.
    assert cache.get("g1") == "engine of g1"

    clock.advance(IN_USE_S + 1)
    cache.load("g4")

    assert [cache.get(name) for name in ("g3", "g4")] == ["engine of g3", "engine of g4"]
    for gone in ("g1", "g2"):
        with pytest.raises(StageUnavailable):
            cache.get(gone)


def test_there_is_a_bound_however_often_they_are_asked_for(cache: GenerationCache[str]) -> None:
    names = [f"g{n}" for n in range(HELD_AT_MOST + 2)]
    for name in names:
        cache.load(name)

    assert [cache.get(n) for n in names[2:]] == [f"engine of {n}" for n in names[2:]]
    with pytest.raises(StageUnavailable):
        cache.get(names[1])


def test_a_generation_that_is_wanted_again_is_the_newest(cache: GenerationCache[str]) -> None:
    for name in ("g1", "g2", "g1"):
        cache.load(name)

    assert cache.newest() == ("g1", "engine of g1")


def test_a_generation_that_cannot_be_loaded_is_a_reason_and_the_others_stay(
    cache: GenerationCache[str], builder: Builder
) -> None:
    cache.load("g1")
    builder.broken.add("g2")

    assert cache.load("g2") == "g2 is damaged"
    assert cache.get("g1") == "engine of g1"


def test_what_is_not_at_hand_is_a_failure_now_and_is_fetched_for_later(
    cache: GenerationCache[str], builder: Builder
) -> None:
    with pytest.raises(StageUnavailable) as failure:
        cache.get("g1")
    assert (failure.value.stage, failure.value.reason) == ("bm25", "generation_not_loaded")

    assert builder.done.wait(10)
    assert cache.load("g1") == ""  # Waits for the fetch to end.
    assert cache.get("g1") == "engine of g1"
    assert builder.built == ["g1"]


def test_a_replica_starts_with_the_published_generation_or_the_newest_sound_one_before_it(
    tmp_path: Path, generations: Generations, cache: GenerationCache[str], builder: Builder
) -> None:
    cards = tmp_path / "cards"
    ids = []
    for text in ("One.", "Two.", "Three."):
        write_card(cards, "c1", text)
        ids.append(ingest(cards, generations, [HashEmbedder()]).generation)
    builder.broken.update(ids[1:])

    cache.load_served()

    assert cache.newest()[0] == ids[0]


def test_a_replica_without_any_sound_generation_says_why_it_does_not_start(
    cache: GenerationCache[str],
) -> None:
    with pytest.raises(StoreError, match="no knowledge base yet"):
        cache.load_served()
