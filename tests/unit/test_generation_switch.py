"""The change from one generation to the next, over the real pipeline and real generations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes_kb import HashEmbedder, write_card
from fakes_serve import FakeClock, FakeDenseLeg, FakeLeg, World, make_client, make_settings
from kb.generations import Generations
from kb.ingest import ingest
from kb.stores.factory import StoreConfig, open_generations
from serve.api import Backend, create_api
from serve.generation_switch import RETRY_AFTER_S, GenerationSwitch
from serve.telemetry import NoMetrics


class Outcomes(NoMetrics):
    """Keep the outcomes of changes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def generation(self, outcome: str) -> None:
        self.seen.append(outcome)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other tasks bring about."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # The code under test has no events to wait for.
            await asyncio.sleep(0.001)


class Place:
    """A home with generations, and a pipeline that was started on the first of them."""

    def __init__(self, folder: Path) -> None:
        self._cards = folder / "cards"
        self.home = folder / "kb"
        self.generations: Generations = open_generations(StoreConfig(self.home))
        self.first = self.ingest("First.")
        self.metrics = Outcomes()
        self.world = World(
            bm25=FakeLeg("bm25", generation="any"),
            dense=FakeDenseLeg(generation="any"),
            metrics=self.metrics,
        )
        self.clock = FakeClock()
        self.pipeline = self.world.pipeline
        self.pipeline.switch(self.generations.load(self.first))
        self.switch = GenerationSwitch(self.generations, self.pipeline, 0.01, self.clock)

    def ingest(self, text: str) -> str:
        write_card(self._cards, "c1", text)
        return ingest(self._cards, self.generations, [HashEmbedder()]).generation

    def damage(self, generation: str) -> None:
        with (self.home / "generations" / generation / "rows.jsonl").open("ab") as file:
            file.write(b"x")

    @property
    def served(self) -> str:
        return self.pipeline.generation.manifest.id


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_the_first_look_settles_once_both_legs_have_the_generation(place: Place) -> None:
    assert not place.switch.settled

    await place.switch.step()

    assert place.switch.settled
    assert place.served == place.first
    assert place.world.bm25.loaded == place.world.dense.loaded == [place.first]


async def test_a_new_generation_is_loaded_by_both_legs_and_then_served(place: Place) -> None:
    await place.switch.step()
    second = place.ingest("Second.")

    await place.switch.step()

    assert place.served == second
    assert place.world.bm25.loaded[-1] == place.world.dense.loaded[-1] == second
    assert (await place.world.ask()).generation == second
    assert place.metrics.seen == ["served", "served"]
    assert place.switch.problem == ""


async def test_a_rollback_is_followed_too(place: Place) -> None:
    place.ingest("Second.")
    await place.switch.step()
    place.generations.rollback()

    await place.switch.step()

    assert place.served == place.first


async def test_a_request_in_flight_ends_on_the_generation_that_it_began_on(place: Place) -> None:
    await place.switch.step()
    place.world.dense.fault = "hang"
    settings = make_settings(leg_timeout_ms=300)
    asked = asyncio.create_task(place.world.ask(settings))
    await until(lambda: bool(place.world.dense.asked))
    second = place.ingest("Second.")
    place.world.dense.fault = "ok"
    await place.switch.step()

    assert place.served == second
    assert (await asked).generation == place.first
    assert place.world.dense.asked[0].generation == place.first


@pytest.mark.parametrize("leg", ["bm25", "dense"])
async def test_when_a_leg_cannot_load_it_the_old_one_goes_on_and_the_reason_is_told(
    place: Place, leg: str
) -> None:
    await place.switch.step()
    second = place.ingest("Second.")
    getattr(place.world, leg).load_problem = "chroma.sqlite3: is damaged"

    await place.switch.step()

    assert place.served == place.first
    assert second in place.switch.problem
    assert "chroma.sqlite3: is damaged" in place.switch.problem
    assert place.metrics.seen[-1] == "failed"
    assert place.switch.settled


async def test_damaged_rows_are_refused_before_any_leg_is_asked(place: Place) -> None:
    await place.switch.step()
    second = place.ingest("Second.")
    place.damage(second)

    await place.switch.step()

    assert place.served == place.first
    assert "rows.jsonl: is damaged" in place.switch.problem
    assert second not in place.world.bm25.loaded


async def test_a_failed_generation_is_tried_again_later_and_not_at_every_look(
    place: Place,
) -> None:
    await place.switch.step()
    second = place.ingest("Second.")
    place.world.dense.load_problem = "the store is away"
    for _ in range(3):
        await place.switch.step()
    assert place.metrics.seen.count("failed") == 1

    place.world.dense.load_problem = ""
    await place.switch.step()
    assert place.served == place.first
    place.clock.advance(RETRY_AFTER_S)
    await place.switch.step()

    assert place.served == second
    assert place.switch.problem == ""


async def test_at_the_start_the_newest_generation_that_all_can_serve_is_taken(
    place: Place,
) -> None:
    second = place.ingest("Second.")
    place.damage(second)

    await place.switch.step()

    assert place.served == place.first
    assert place.switch.settled
    assert "rows.jsonl: is damaged" in place.switch.problem


async def test_a_leg_that_has_not_come_up_is_waited_for(place: Place) -> None:
    place.world.dense.fault = "raise"
    await place.switch.step()
    assert not place.switch.settled

    place.world.dense.fault = "ok"
    await place.switch.step()

    assert place.switch.settled
    assert place.metrics.seen == ["served"]


async def test_a_pointer_that_is_gone_leaves_what_is_served(place: Place) -> None:
    await place.switch.step()
    (place.home / "CURRENT").unlink()

    await place.switch.step()

    assert place.served == place.first
    assert "CURRENT is gone" in place.switch.problem


async def test_an_unforeseen_failure_does_not_end_the_watch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()
    looks = iter([RuntimeError("a bug")])
    real = place.generations.current_id

    def current_id() -> str | None:
        for error in looks:
            raise error
        looked.set()
        return real()

    monkeypatch.setattr(place.generations, "current_id", current_id)
    watching = asyncio.create_task(place.switch.run())
    await until(lambda: place.switch.settled)
    watching.cancel()

    assert looked.is_set()


async def test_readiness_waits_for_the_switch_and_tells_what_is_not_served(place: Place) -> None:
    backend = Backend(place.pipeline, make_settings, place.switch)
    assert not backend.generation_ping().ok

    await place.switch.step()
    second = place.ingest("Second.")
    place.damage(second)
    await place.switch.step()
    ping = backend.generation_ping()

    assert ping.ok
    assert ping.detail.startswith(place.first)
    assert second in ping.detail
    assert "damaged" in ping.detail


async def test_the_api_watches_while_it_runs(place: Place) -> None:
    api = create_api(Backend(place.pipeline, make_settings, place.switch))
    async with api.router.lifespan_context(api):
        await until(lambda: place.switch.settled)
        second = place.ingest("Second.")
        await until(lambda: place.served == second)


async def test_without_a_switch_the_generation_is_ready_as_it_is() -> None:
    async with make_client(World()) as client:
        body = (await client.get("/readyz")).json()

    assert body["pings"]["generation"]["ok"]
