"""From a query to cards, over fake stages and a fake clock."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_serve import (
    CHUNKS,
    GENERATION,
    QUERY,
    FakeDenseLeg,
    FakeLeg,
    FakeReranker,
    Fault,
    World,
    cards_of,
    degraded_of,
    hits_of,
    make_chunk,
    make_generation,
    make_settings,
)
from kb.errors import StageUnavailable
from kb.types import (
    Filters,
    Fingerprint,
    Hit,
    LegQuery,
    Locale,
    QueryVector,
    Ranking,
    VectorSpace,
)
from serve import stages as stages_module
from serve.calibration import Calibration, Curve
from serve.pipeline import RESERVE_MS, HybridPipeline, decide_path
from serve.schemas import RetrieveRequest, RetrieveResponse
from serve.stages import Stages
from serve.telemetry import NoMetrics, Telemetry

FAULTS: tuple[Fault, ...] = get_args(Fault)
REASONS = {"raise": "down", "crash": "failed", "hang": "timeout"}
NAN = float("nan")
SPACE = st.sampled_from([f"{card}:en:{n}" for card in "abcdef" for n in (1, 2, 3)])
RANKINGS = st.lists(SPACE, unique=True, max_size=12)
PROPERTY = settings(deadline=None, max_examples=40, derandomize=True)


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def parse(answer: RetrieveResponse) -> Any:
    """Read the answer's JSON as a strict client would."""
    return json.loads(answer.model_dump_json(), parse_constant=refuse_constant)


def without_timings(answer: RetrieveResponse) -> dict[str, Any]:
    return answer.model_dump(exclude={"timings_ms"})


async def only_the_test_is_running() -> bool:
    """Give what was cancelled a turn to end, and tell whether all of it did."""
    for _ in range(5):
        await asyncio.sleep(0)
    return len(asyncio.all_tasks()) == 1


# The paths


def test_the_path_follows_from_what_answered() -> None:
    ranking = Ranking((), GENERATION)

    assert decide_path(ranking, ranking, reranked=True, found=True) == "full"
    assert decide_path(ranking, ranking, reranked=False, found=True) == "rrf_only"
    assert decide_path(None, ranking, reranked=False, found=True) == "dense_only"
    assert decide_path(ranking, None, reranked=False, found=True) == "bm25_only"
    for bm25, dense in itertools.product((None, ranking), repeat=2):
        assert decide_path(bm25, dense, reranked=True, found=False) == "no_match"


async def test_both_legs_fusion_and_rerank_are_the_full_path() -> None:
    answer = await World().ask()

    assert answer.hybrid_path == "full"
    assert answer.degraded == []
    assert answer.no_match_reason is None
    assert answer.generation == GENERATION
    assert answer.request_id == "request-1"
    assert cards_of(answer) == "cab"
    assert [hit.score_kind for hit in answer.hits] == ["rerank"] * 3
    assert answer.hits[0].score == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert answer.rerank is not None
    assert answer.rerank.model_dump() == {"model": "fake-reranker", "window": 3, "scored": 3}
    assert set(answer.timings_ms) == {"total", "bm25", "dense", "fuse", "rerank", "parents"}


def expected_answer(
    bm25: Fault, dense: Fault, rerank: Fault
) -> tuple[str, str, set[tuple[str, str]]]:
    """Say by the table of the design which path, which cards and which reasons an answer has."""
    degraded = {
        (stage, REASONS[fault])
        for stage, fault in (("bm25", bm25), ("dense", dense))
        if fault in REASONS
    }
    found = ("ab" if bm25 == "ok" else "", "bc" if dense == "ok" else "")
    if found == ("", ""):
        return "no_match", "", degraded
    if dense in REASONS:
        return "bm25_only", "ab", degraded
    if bm25 in REASONS:
        return "dense_only", "bc", degraded
    if rerank == "ok":
        return "full", {"ab": "ab", "bc": "cb"}.get("".join(found), "cab"), degraded
    degraded.add(("rerank", REASONS.get(rerank, "deadline")))
    # 1/61 + 1/62 for b, then 1/61 for a, then 1/62 for c.
    return "rrf_only", {"ab": "ab", "bc": "bc"}.get("".join(found), "bac"), degraded


@pytest.mark.parametrize("rerank", FAULTS)
@pytest.mark.parametrize("dense", FAULTS)
@pytest.mark.parametrize("bm25", FAULTS)
async def test_any_fault_of_any_stage_gives_the_path_of_the_table(
    bm25: Fault, dense: Fault, rerank: Fault
) -> None:
    world = World()
    world.bm25.fault, world.dense.fault, world.reranker.fault = bm25, dense, rerank

    answer = await world.ask(deadline_ms=150)

    path, cards, degraded = expected_answer(bm25, dense, rerank)
    assert (answer.hybrid_path, cards_of(answer)) == (path, cards)
    assert degraded_of(answer) == degraded
    assert len(answer.degraded) == len(degraded)
    assert answer.no_match_reason == ("no_candidates" if path == "no_match" else None)
    kind = {"full": "rerank", "rrf_only": "fused", "dense_only": "similarity", "bm25_only": "bm25"}
    assert {hit.score_kind for hit in answer.hits} <= {kind.get(path)}
    attributes = world.spans.named("retrieve").attributes or {}
    assert attributes["agent.hybrid_path"] == answer.hybrid_path
    assert attributes["retrieval.degraded"] == tuple(
        f"{item.stage}:{item.reason}" for item in answer.degraded
    )
    assert await only_the_test_is_running()


@pytest.mark.parametrize(
    ("setting", "request_field"), [(False, True), (True, False), (False, False)]
)
async def test_hybrid_off_asks_the_dense_leg_alone_and_is_no_degradation(
    setting: bool, request_field: bool
) -> None:
    world = World()

    answer = await world.ask(make_settings(retrieval_hybrid_enabled=setting), hybrid=request_field)

    assert (answer.hybrid_path, cards_of(answer)) == ("dense_only", "bc")
    assert answer.degraded == []
    assert world.bm25.asked == []
    assert world.reranker.asked == []


@pytest.mark.parametrize("fault", ["raise", "crash", "hang"])
async def test_the_lexical_leg_backs_up_a_dense_leg_that_was_to_run_alone(fault: Fault) -> None:
    world = World()
    world.dense.fault = fault

    answer = await world.ask(make_settings(retrieval_hybrid_enabled=False), deadline_ms=150)

    assert (answer.hybrid_path, cards_of(answer)) == ("bm25_only", "ab")
    assert degraded_of(answer) == {("dense", REASONS[fault])}


async def test_hybrid_off_and_both_legs_down_says_so() -> None:
    world = World()
    world.dense.fault = world.bm25.fault = "raise"

    answer = await world.ask(hybrid=False)

    assert (answer.hybrid_path, answer.no_match_reason) == ("no_match", "no_candidates")
    assert degraded_of(answer) == {("dense", "down"), ("bm25", "down")}


@pytest.mark.parametrize(
    ("setting", "body"),
    [({"rerank_enabled": False}, {}), ({}, {"rerank": False}), ({"reranker_max_input": 0}, {})],
)
async def test_rerank_off_ends_with_fusion_and_is_no_degradation(
    setting: dict[str, Any], body: dict[str, Any]
) -> None:
    world = World()

    answer = await world.ask(make_settings(**setting), **body)

    assert (answer.hybrid_path, cards_of(answer)) == ("rrf_only", "bac")
    assert answer.degraded == []
    assert answer.rerank is None
    assert world.reranker.asked == []


async def test_a_language_the_reranker_does_not_cover_is_rrf_only_with_the_reason() -> None:
    class EnglishOnly(FakeReranker):
        async def rerank(self, query: str, passages: Any, language: str, deadline: float) -> Any:
            if language != "en":
                raise StageUnavailable("rerank", "language_not_covered")
            return await super().rerank(query, passages, language, deadline)

    world = World(reranker=EnglishOnly())

    assert (await world.ask(locale="en")).hybrid_path == "full"
    answer = await world.ask(locale="es-MX")
    assert (answer.hybrid_path, answer.locale) == ("rrf_only", "es-419")
    assert degraded_of(answer) == {("rerank", "language_not_covered")}


# Nothing found


async def test_an_empty_knowledge_base_is_said_without_asking_anyone() -> None:
    world = World(chunks=())

    answer = await world.ask()

    assert (answer.hybrid_path, answer.no_match_reason) == ("no_match", "kb_empty")
    assert answer.hits == []
    assert answer.degraded == []
    assert world.bm25.asked == world.dense.asked == []
    assert world.reranker.asked == []


@pytest.mark.parametrize("leg", ["bm25", "dense"])
async def test_hits_lost_to_the_filters_are_the_reason_for_nothing(leg: str) -> None:
    world = World()
    world.bm25.hits = world.dense.hits = ()
    getattr(world, leg).filtered_out = 3

    answer = await world.ask(filters={"category": ["escalation"]})

    assert (answer.hybrid_path, answer.no_match_reason) == ("no_match", "filtered_out")


async def test_no_candidates_are_the_reason_for_nothing() -> None:
    world = World()
    world.bm25.hits = world.dense.hits = ()

    answer = await world.ask()

    assert (answer.hybrid_path, answer.no_match_reason) == ("no_match", "no_candidates")
    assert answer.degraded == []


async def test_a_floor_that_drops_everything_is_the_reason_for_nothing() -> None:
    answer = await World().ask(min_similarity=1.0)

    assert (answer.hybrid_path, answer.no_match_reason) == ("no_match", "below_min_similarity")
    assert answer.hits == []


# min_similarity

TEN = [make_chunk(f"c{n}:en:1", f"text {n}") for n in range(10)]
DISLIKES_C7 = FakeReranker({c.passage: -9.0 if c.card_id == "c7" else 9.0 for c in TEN})


def ten_cards(reranker: FakeReranker) -> World:
    """Ten cards that both legs find, c7 first, whose cosine alone is high."""
    order = ["c7:en:1", *(chunk.id for chunk in TEN if chunk.card_id != "c7")]
    cosines = [Hit(chunk_id, 0.95 if chunk_id == "c7:en:1" else 0.1) for chunk_id in order]
    return World(
        TEN, FakeLeg("bm25", hits_of(*order)), FakeDenseLeg(hits=cosines), reranker=reranker
    )


async def test_min_similarity_is_never_compared_with_a_fused_score() -> None:
    answer = await ten_cards(FakeReranker(fault="raise")).ask(min_similarity=0.3, top_k=10)

    assert answer.hybrid_path == "rrf_only"
    assert [hit.card_id for hit in answer.hits] == ["c7"]
    assert answer.hits[0].score == pytest.approx(2 / 61)


async def test_min_similarity_is_never_compared_with_a_rerank_score() -> None:
    reranker = FakeReranker(
        {chunk.passage: -9.0 if chunk.card_id == "c7" else 9.0 for chunk in TEN}
    )

    answer = await ten_cards(reranker).ask(min_similarity=0.3, top_k=10)

    assert answer.hybrid_path == "full"
    assert [hit.card_id for hit in answer.hits] == ["c7"]
    assert answer.hits[0].score < 0.001


@pytest.mark.parametrize(
    ("floors", "asked", "kept"),
    [
        ({"bge-small-en-v1.5": 0.85}, None, "b"),
        ({"bge-small-en-v1.5": 0.85}, 0.1, "bc"),
        ({"multilingual-e5-small": 0.85}, None, "bc"),
    ],
)
async def test_an_embedders_own_floor_counts_where_it_answered_and_no_other_is_set(
    floors: dict[str, float], asked: float | None, kept: str
) -> None:
    fingerprint = Fingerprint("bge-small-en-v1.5", "1", 1, "", "")
    space = VectorSpace(fingerprint, ("en",), 2)
    vector = QueryVector(GENERATION, space.name, np.ones(1, dtype=np.float32))
    hits = (Hit("b:en:1", 0.9), Hit("c:en:1", 0.8))
    world = World(bm25=FakeLeg("bm25"), dense=FakeDenseLeg(hits=hits, query_vector=vector))
    loaded = make_generation(world.chunks)
    world.pipeline.switch(replace(loaded, manifest=replace(loaded.manifest, spaces=(space,))))

    answer = await world.ask(
        make_settings(min_similarity_by_embedder=floors), min_similarity=asked, rerank=False
    )

    assert cards_of(answer) == kept


async def test_top_k_is_cut_before_min_similarity() -> None:
    reranker = FakeReranker(
        {chunk.passage: -9.0 if chunk.card_id == "c7" else 9.0 for chunk in TEN}
    )

    answer = await ten_cards(reranker).ask(min_similarity=0.3, top_k=9)

    assert answer.no_match_reason == "below_min_similarity"


async def test_an_unknown_similarity_passes_and_says_null() -> None:
    world = World()
    world.dense.fault = "raise"

    answer = await world.ask(min_similarity=0.99)

    assert (answer.hybrid_path, cards_of(answer)) == ("bm25_only", "ab")
    assert [hit["similarity"] for hit in parse(answer)["hits"]] == [None, None]


async def test_what_only_the_lexical_leg_found_is_compared_by_its_vector() -> None:
    world = World()
    world.dense.cosines = {"a:en:1": 0.25}

    answer = await world.ask()

    assert world.dense.compared == [["a:en:1"]]
    assert {hit.card_id: hit.similarity for hit in answer.hits} == {
        "a": 0.25,
        "b": world.dense.hits[0].score,
        "c": world.dense.hits[1].score,
    }


@pytest.mark.parametrize(("floor", "cards"), [(0.25, "cab"), (0.26, "cb")])
async def test_a_lexical_hit_below_the_floor_is_dropped_and_one_on_it_is_kept(
    floor: float, cards: str
) -> None:
    world = World()
    world.dense.cosines = {"a:en:1": 0.25}

    answer = await world.ask(min_similarity=floor)

    assert cards_of(answer) == cards
    assert [hit.rank for hit in answer.hits] == list(range(1, len(cards) + 1))


@pytest.mark.parametrize("fault", ["raise", "crash", "hang", "empty"])
async def test_similarities_that_cannot_be_had_are_null_and_cost_no_hit(fault: Fault) -> None:
    world = World()
    world.dense.similarities_fault = fault

    answer = await world.ask(min_similarity=0.8, deadline_ms=100)

    assert cards_of(answer) == "cab"
    assert {hit.card_id: hit.similarity for hit in answer.hits}["a"] is None
    assert degraded_of(answer) == {("dense", REASONS[f]) for f in [fault] if f in REASONS}


@pytest.mark.parametrize("answered", [[0.5, 0.5], [NAN], ["high"], None])
async def test_similarities_that_make_no_sense_are_no_similarities(answered: Any) -> None:
    class Odd(FakeDenseLeg):
        async def similarities(self, *_: Any) -> Any:
            return answered

    answer = await World(dense=Odd(hits=hits_of("b:en:1", "c:en:1"))).ask(min_similarity=0.2)

    hits = {hit["card_id"]: hit for hit in parse(answer)["hits"]}
    assert set(hits) == set("abc")
    assert hits["a"]["similarity"] is None


async def test_the_requests_floor_wins_over_the_setting() -> None:
    world = World()
    world.dense.cosines = {"a:en:1": 0.1}
    strict = make_settings(min_similarity=0.2)

    assert cards_of(await world.ask(strict)) == "cb"
    assert cards_of(await world.ask(strict, min_similarity=0.05)) == "cab"


# Rerank


async def test_a_failed_rerank_keeps_the_fused_order_and_warns_once_without_the_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    fused = await world.ask(rerank=False)
    world.reranker.fault = "crash"

    with caplog.at_level(logging.DEBUG):
        answer = await world.ask()
        await world.ask()

    assert cards_of(answer) == cards_of(fused)
    assert [hit.score for hit in answer.hits] == [hit.score for hit in fused.hits]
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "rerank" in record.getMessage()
    assert "RuntimeError" in record.getMessage()
    assert "ibuprofen" not in caplog.text


async def test_a_fault_that_lasts_is_warned_of_again_after_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.reranker.fault = "raise"

    for seconds in (0, 30, 31, 59):  # Warned of at 0 and at 61.
        world.clock.advance(seconds)
        await world.ask()

    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "raw",
    [
        (0.9, NAN, 0.95),
        (NAN, NAN, NAN),
        (0.9, math.inf, 0.95),
        (0.9, -math.inf, 0.95),
        (0.9, 0.8, 0.7, 0.6),
        (0.9, 0.8),  # Two of three, and said to be complete.
        ("0.9", "0.8", "0.7"),
        (0.9, None, 0.7),
        (1, 2, 3),
        (True, False, True),
        ([0.9], [0.8], [0.7]),
    ],
)
async def test_broken_scores_are_rrf_only_with_the_reason(raw: Any) -> None:
    world = World(reranker=FakeReranker(raw=raw))

    answer = await world.ask(explain=True)

    assert (answer.hybrid_path, cards_of(answer)) == ("rrf_only", "bac")
    assert degraded_of(answer) == {("rerank", "broken_score")}
    assert answer.rerank is None
    assert all(hit["evidence"]["rerank_score"] is None for hit in parse(answer)["hits"])


@pytest.mark.parametrize("answered", [None, [0.9, 0.8, 0.7], "scores", 3])
async def test_what_is_no_scores_at_all_is_rrf_only(answered: Any) -> None:
    class Odd(FakeReranker):
        async def rerank(self, *_: Any) -> Any:
            return answered

    answer = await World(reranker=Odd()).ask()

    assert (answer.hybrid_path, cards_of(answer)) == ("rrf_only", "bac")
    assert [item.stage for item in answer.degraded] == ["rerank"]


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("broken", [NAN, math.inf])
async def test_a_cosine_that_is_no_number_never_reaches_the_client(
    broken: float, hybrid: bool
) -> None:
    world = World()
    world.dense.hits = [Hit("b:en:1", broken), Hit("c:en:1", 0.5)]

    for hit in parse(await world.ask(hybrid=hybrid, rerank=False))["hits"]:
        assert math.isfinite(hit["score"])
        assert hit["similarity"] is None or abs(hit["similarity"]) <= 1


async def test_candidates_without_a_score_follow_in_fused_order_and_none_is_lost() -> None:
    hits = hits_of(*(chunk.id for chunk in CHUNKS))
    world = World(
        bm25=FakeLeg("bm25", hits),
        dense=FakeDenseLeg(hits=hits),
        reranker=FakeReranker({"A: text of a": -5.0, "B: text of b": -4.0}, first=2),
    )

    answer = await world.ask(top_k=6)

    assert cards_of(answer) == "bacdef"
    assert [hit.score_kind for hit in answer.hits] == ["rerank"] * 2 + ["fused"] * 4
    assert answer.hybrid_path == "full"
    assert answer.rerank is not None
    assert (answer.rerank.window, answer.rerank.scored) == (6, 2)


async def test_only_the_window_is_reranked_and_none_is_lost() -> None:
    hits = hits_of(*(chunk.id for chunk in CHUNKS))
    world = World(bm25=FakeLeg("bm25", hits), dense=FakeDenseLeg(hits=hits))

    answer = await world.ask(make_settings(reranker_max_input=3), top_k=6)

    ((query, passages, language, _),) = world.reranker.asked
    assert (query, language) == (QUERY, "en")
    assert passages == ("A: text of a", "B: text of b", "C: text of c")
    assert cards_of(answer) == "cabdef"
    assert answer.rerank is not None
    assert (answer.rerank.window, answer.rerank.scored) == (3, 3)


async def test_equal_rerank_scores_are_ordered_by_id() -> None:
    hits = hits_of("c:en:1", "b:en:1", "a:en:1")
    world = World(
        bm25=FakeLeg("bm25", hits), dense=FakeDenseLeg(hits=hits), reranker=FakeReranker()
    )

    assert cards_of(await world.ask()) == "abc"


# One generation


@pytest.mark.parametrize(
    ("leg", "path", "cards"), [("bm25", "dense_only", "bc"), ("dense", "bm25_only", "ab")]
)
async def test_a_ranking_of_another_generation_is_refused(leg: str, path: str, cards: str) -> None:
    world = World()
    getattr(world, leg).generation = "another"

    answer = await world.ask()

    assert (answer.hybrid_path, cards_of(answer)) == (path, cards)
    assert degraded_of(answer) == {(leg, "other_generation")}


async def test_two_rankings_of_another_generation_are_both_refused() -> None:
    world = World()
    world.bm25.generation = world.dense.generation = "another"

    answer = await world.ask()

    assert (answer.hybrid_path, answer.generation) == ("no_match", GENERATION)
    assert degraded_of(answer) == {("bm25", "other_generation"), ("dense", "other_generation")}


@pytest.mark.parametrize("leg", ["bm25", "dense"])
@pytest.mark.parametrize("hybrid", [True, False])
async def test_a_hit_that_the_generation_does_not_hold_never_fails_the_request(
    leg: str, hybrid: bool
) -> None:
    world = World()
    getattr(world, leg).hits = hits_of("gone:en:1", "b:en:1")

    answer = await world.ask(hybrid=hybrid)

    assert "b" in cards_of(answer)
    assert "gone" not in cards_of(answer)


# Time


@pytest.mark.parametrize("deadline_ms", [100, 1000, 60_000])
@pytest.mark.parametrize("hybrid", [True, False])
async def test_a_leg_must_answer_before_the_request_must(deadline_ms: int, hybrid: bool) -> None:
    world = World()
    start = world.clock.now

    await world.ask(deadline_ms=deadline_ms, hybrid=hybrid)

    for query in (*world.bm25.asked, *world.dense.asked):
        assert start < query.deadline <= start + (deadline_ms - RESERVE_MS) / 1000 + 1e-9


async def test_a_request_that_names_no_deadline_gets_that_of_the_settings() -> None:
    world = World()

    await world.ask(make_settings(deadline_ms=700))

    assert world.dense.asked[0].deadline <= world.clock.now + 0.7


@pytest.mark.parametrize(
    ("deadline_ms", "until"), [(5000, 0.2 + 0.15), (300, 0.3 - RESERVE_MS / 1000)]
)
async def test_the_reranker_gets_what_the_legs_left_over_minus_the_way_back(
    deadline_ms: int, until: float
) -> None:
    world = World()
    world.dense.clock, world.dense.takes_s = world.clock, 0.2
    start = world.clock.now

    await world.ask(make_settings(rerank_budget_ms=150), deadline_ms=deadline_ms)

    ((_, _, _, deadline),) = world.reranker.asked
    assert start + until - 0.05 < deadline < start + until
    assert deadline < start + deadline_ms / 1000


@dataclass
class SlowLeg(FakeDenseLeg):
    """A leg that answers after it should have, by the loop's own clock."""

    async def search(self, query: LegQuery) -> Ranking:
        await asyncio.sleep(0.06)
        return await super().search(query)


async def test_a_leg_that_is_late_is_not_waited_for_when_the_other_has_answered() -> None:
    answer = await World(dense=SlowLeg(hits=hits_of("b:en:1"))).ask(deadline_ms=60_000)

    assert (answer.hybrid_path, cards_of(answer)) == ("bm25_only", "ab")
    assert degraded_of(answer) == {("dense", "timeout")}


async def test_a_leg_that_is_late_is_waited_for_when_the_other_has_failed() -> None:
    world = World(dense=SlowLeg(hits=hits_of("b:en:1", "c:en:1")))
    world.bm25.fault = "raise"

    answer = await world.ask(deadline_ms=60_000)

    assert (answer.hybrid_path, cards_of(answer)) == ("dense_only", "bc")
    assert degraded_of(answer) == {("bm25", "down")}


async def test_a_lexical_leg_that_backs_up_is_asked_while_there_is_time() -> None:
    world = World()
    world.dense.clock, world.dense.takes_s, world.dense.fault = world.clock, 0.3, "raise"
    start = world.clock.now

    answer = await world.ask(make_settings(leg_timeout_ms=500), hybrid=False, deadline_ms=1000)

    assert answer.hybrid_path == "bm25_only"
    assert start + 0.3 < world.bm25.asked[0].deadline < start + 1.0


async def test_work_whose_time_is_over_is_not_started() -> None:
    world = World()
    world.dense.clock, world.dense.takes_s = world.clock, 2.0

    answer = await world.ask(deadline_ms=1000)

    assert world.reranker.asked == []
    assert world.dense.compared == []
    assert (answer.hybrid_path, cards_of(answer)) == ("rrf_only", "bac")
    assert ("rerank", "timeout") in degraded_of(answer)


async def test_the_shortest_deadline_that_is_allowed_leaves_the_legs_some_time() -> None:
    world = World()
    (lowest,) = [
        b.ge for b in RetrieveRequest.model_fields["deadline_ms"].metadata if hasattr(b, "ge")
    ]

    await world.ask(deadline_ms=lowest)

    assert world.bm25.asked[0].deadline > world.clock.now


async def test_the_legs_run_at_the_same_time() -> None:
    both_are_there = asyncio.Barrier(2)

    @dataclass
    class Meeting(FakeDenseLeg):
        async def search(self, query: LegQuery) -> Ranking:
            await both_are_there.wait()
            return await super().search(query)

    world = World(bm25=Meeting("bm25", hits_of("a:en:1")), dense=Meeting(hits=hits_of("b:en:1")))

    answer = await world.ask(make_settings(leg_timeout_ms=5000))

    assert answer.degraded == []


async def test_a_caller_that_goes_away_takes_the_work_along() -> None:
    started = asyncio.Event()

    @dataclass
    class Hanging(FakeLeg):
        stopped: list[str] = field(default_factory=list)

        async def search(self, query: LegQuery) -> Ranking:
            self.asked.append(query)
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.append(self.stage)
            raise AssertionError

    leg = Hanging("bm25")
    asked = asyncio.create_task(World(bm25=leg).ask(make_settings(leg_timeout_ms=60_000)))
    await started.wait()

    asked.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await only_the_test_is_running()
    assert leg.stopped == ["bm25"]


# What the legs are asked


@pytest.mark.parametrize(("top_k", "depth"), [(1, 4), (2, 8), (3, 10), (50, 10)])
async def test_the_legs_over_fetch_up_to_the_cap_and_reach_top_k_cards(
    top_k: int, depth: int
) -> None:
    world = World()

    await world.ask(make_settings(candidate_multiplier=4, candidate_max=10), top_k=top_k)

    for leg in (world.bm25, world.dense):
        assert (leg.asked[0].depth, leg.asked[0].min_cards) == (depth, top_k)


async def test_both_legs_are_asked_the_same() -> None:
    world = World()

    await world.ask(
        query="¿y con warfarina?",
        locale="es-MX",
        filters={"category": ["escalation", "drug-interaction"], "drugs": ["Warfarin"]},
    )

    (query,) = world.bm25.asked
    assert world.dense.asked == [query]
    assert (query.text, query.locale) == ("¿y con warfarina?", "es-419")
    assert query.filters == Filters(
        frozenset({"escalation", "drug-interaction"}), frozenset({"warfarin"})
    )


@pytest.mark.parametrize(
    ("query", "named", "locale"),
    [
        ("¿Puedo tomar ibuprofeno con warfarina?", None, "es-419"),
        ("¿Puedo tomar ibuprofeno con warfarina?", "pt-PT", "pt-BR"),
        ("Posso tomar ibuprofeno com varfarina?", "de", "pt-BR"),
        (QUERY, None, "en"),
    ],
)
async def test_the_locale_is_the_one_named_or_else_the_one_detected(
    query: str, named: str | None, locale: str
) -> None:
    assert (await World().ask(query=query, locale=named)).locale == locale


async def test_weights_and_the_constant_reach_the_fusion() -> None:
    answer = await World().ask(
        make_settings(bm25_weight=3.0, dense_weight=0.5, rrf_k=10), rerank=False
    )

    assert cards_of(answer) == "bac"
    scores = {hit.card_id: hit.score for hit in answer.hits}
    assert scores == pytest.approx({"a": 3 / 11, "b": 3 / 12 + 0.5 / 11, "c": 0.5 / 12})


def world_in(locale: Locale) -> World:
    """Give a world whose sub-chunks are in a locale, and whose dense leg is e5's."""
    fingerprint = Fingerprint("multilingual-e5-small", "1", 1, "", "")
    space = VectorSpace(fingerprint, (), 3)
    vector = QueryVector(GENERATION, space.name, np.ones(1, dtype=np.float32))
    dense = FakeDenseLeg(hits=hits_of("b:en:1", "c:en:1"), query_vector=vector)
    world = World([make_chunk(f"{card}:en:1", locale=locale) for card in "abc"], dense=dense)
    loaded = make_generation(world.chunks)
    world.pipeline.switch(replace(loaded, manifest=replace(loaded.manifest, spaces=(space,))))
    return world


@pytest.mark.parametrize(
    ("locale", "weights", "bm25", "dense"),
    [
        ("es-419", {}, 1.0, 1.0),
        ("en", {"cross_language_bm25_weight": 0.25}, 0.25, 1.0),
        ("es-419", {"cross_language_bm25_weight": 0.25}, 1.0, 1.0),
        ("es-419", {"dense_weight_by_embedder": {"multilingual-e5-small": 0.5}}, 1.0, 0.5),
        ("es-419", {"dense_weight_by_embedder": {"bge-small-en-v1.5": 0.5}}, 1.0, 1.0),
    ],
)
async def test_the_legs_weigh_by_language_and_by_embedder(
    locale: Locale, weights: dict[str, Any], bm25: float, dense: float
) -> None:
    neutral = {"cross_language_bm25_weight": 1.0, "dense_weight_by_embedder": {}}
    answer = await world_in(locale).ask(
        make_settings(**{**neutral, **weights}), locale="es-419", rerank=False, explain=True
    )

    scores = {hit.card_id: hit.score for hit in answer.hits}
    assert scores == pytest.approx({"a": bm25 / 61, "b": bm25 / 62 + dense / 61, "c": dense / 62})


# The answer


async def test_the_evidence_says_what_each_stage_saw() -> None:
    world = World()
    world.dense.cosines = {"a:en:1": 0.25}

    hits = {hit.card_id: hit for hit in (await world.ask(explain=True)).hits}

    of_a, of_b = hits["a"].evidence, hits["b"].evidence
    assert of_a is not None
    assert of_a.model_dump() == {
        "bm25": {"rank": 1, "score": 0.9},
        "dense": {"rank": None, "similarity": 0.25},
        "fused_score": pytest.approx(1 / 61),
        "rerank_score": 1.0,
        "relevance": None,
        "calibrated": False,
        "asked_as": None,
    }
    assert of_b is not None
    assert of_b.model_dump() == {
        "bm25": {"rank": 2, "score": pytest.approx(0.89)},
        "dense": {"rank": 1, "similarity": 0.9},
        "fused_score": pytest.approx(1 / 62 + 1 / 61),
        "rerank_score": -1.0,
        "relevance": None,
        "calibrated": False,
        "asked_as": None,
    }


async def test_there_is_no_evidence_unless_it_is_asked_for() -> None:
    assert all(hit.evidence is None for hit in (await World().ask()).hits)


# Relevance

FITTED = Calibration(
    fitted_on="a few queries",
    curves=(
        Curve(space="space", reranker=None, intercept=-4.0, similarity=8.0),
        Curve(space="space", reranker="fake-reranker", intercept=-5.0, similarity=6.0, rerank=3.0),
    ),
)


def calibrated(world: World, calibration: Calibration = FITTED) -> World:
    """Give a world its calibration; the lexical hit that the dense leg missed is half similar."""
    world.dense.cosines = {"a:en:1": 0.5}
    stages = Stages(world.bm25, world.dense, world.reranker)
    world.pipeline = HybridPipeline(
        stages,
        make_generation(world.chunks),
        Telemetry(NoMetrics()),
        world.clock,
        calibration,
    )
    return world


def relevance_of(answer: RetrieveResponse) -> dict[str, tuple[float | None, bool]]:
    return {
        hit.card_id: (hit.evidence.relevance, hit.evidence.calibrated)
        for hit in answer.hits
        if hit.evidence
    }


async def test_with_a_calibration_each_hit_has_its_probability_when_it_is_explained() -> None:
    answer = await calibrated(World()).ask(explain=True)

    assert answer.hybrid_path == "full"
    # Logits 1, -1 and 2 are 0.731, 0.269 and 0.881: for a -5 + 6 * 0.5 + 3 * 0.731 = 0.193.
    found = relevance_of(answer)
    assert all(known for _, known in found.values())
    assert {card: probability for card, (probability, _) in found.items()} == pytest.approx(
        {"a": 0.548144, "b": 0.769737, "c": 0.951772}, abs=1e-6
    )


async def test_what_was_not_reranked_has_the_probability_of_its_similarity_alone() -> None:
    answer = await calibrated(World()).ask(explain=True, rerank=False)

    assert answer.hybrid_path == "rrf_only"
    assert relevance_of(answer)["a"] == (0.5, True)  # -4 + 8 * 0.5 = 0.


async def test_beyond_the_window_the_probability_is_that_of_the_similarity_alone() -> None:
    answer = await calibrated(World()).ask(make_settings(reranker_max_input=1), explain=True)

    assert answer.hybrid_path == "full"
    assert [hit.score_kind for hit in answer.hits] == ["rerank", "fused", "fused"]
    assert relevance_of(answer)["a"] == (0.5, True)


async def test_the_dense_leg_alone_is_calibrated_too() -> None:
    answer = await calibrated(World()).ask(explain=True, hybrid=False)

    assert answer.hybrid_path == "dense_only"
    assert all(known for _, known in relevance_of(answer).values())


async def test_without_a_similarity_no_hit_has_a_probability() -> None:
    world = calibrated(World())
    world.dense.fault = "raise"

    answer = await world.ask(explain=True)

    assert answer.hybrid_path == "bm25_only"
    assert relevance_of(answer) == {"a": (None, False), "b": (None, False)}


async def test_another_vector_space_than_the_one_fitted_on_has_no_probability() -> None:
    curves = tuple(curve.model_copy(update={"space": "other"}) for curve in FITTED.curves)
    world = calibrated(World(), Calibration(fitted_on="x", curves=curves))

    assert set(relevance_of(await world.ask(explain=True)).values()) == {(None, False)}


async def test_a_calibration_changes_neither_order_nor_score_and_shows_nothing_unasked() -> None:
    plain = World()
    plain.dense.cosines = {"a:en:1": 0.5}

    answer, before = await calibrated(World()).ask(), await plain.ask()

    assert answer.hits == before.hits
    assert all(hit.evidence is None for hit in answer.hits)


# Turns that a card answers

TURN = make_chunk("a:en:asked-1", "my gums bleed, what now?", title="A", shown=False, ordinal=3)
ANSWER = (
    make_chunk("a:en:1", "About bleeding.", title="A", ordinal=1),
    make_chunk("a:en:2", "Call your doctor.", title="A", ordinal=2),
)


def turned(bm25: tuple[str, ...], dense: tuple[str, ...]) -> World:
    return World(
        [*ANSWER, TURN, CHUNKS[1]],
        FakeLeg("bm25", hits_of(*bm25)),
        FakeDenseLeg(hits=hits_of(*dense)),
    )


async def test_a_card_found_by_a_turn_alone_shows_its_text_and_names_the_turn() -> None:
    (hit,) = (await turned((TURN.id,), (TURN.id,)).ask(explain=True)).hits

    assert (hit.card_id, hit.chunk_id, hit.passage) == ("a", "a:en:1", "About bleeding.")
    assert hit.evidence is not None
    assert hit.evidence.asked_as == TURN.text
    assert hit.similarity == 0.9


async def test_of_a_card_found_by_a_turn_the_best_text_that_was_found_is_shown() -> None:
    (hit,) = (await turned((TURN.id, "a:en:2"), (TURN.id,)).ask(explain=True, rerank=False)).hits

    assert (hit.chunk_id, hit.passage) == ("a:en:2", "Call your doctor.")
    assert hit.evidence is not None
    assert hit.evidence.asked_as == TURN.text


async def test_a_card_whose_text_was_found_before_its_turn_names_no_turn() -> None:
    world = turned(("a:en:2", TURN.id), ("a:en:2", TURN.id))

    (hit,) = (await world.ask(explain=True, rerank=False)).hits

    assert hit.chunk_id == "a:en:2"
    assert hit.evidence is not None
    assert hit.evidence.asked_as is None


async def test_the_reranker_reads_the_text_of_a_card_and_never_a_turn() -> None:
    world = turned((TURN.id,), (TURN.id, "b:en:1"))

    await world.ask()

    ((_, passages, _, _),) = world.reranker.asked
    assert passages == ("A: About bleeding.", "B: text of b")


@pytest.mark.parametrize("down", ["bm25", "dense"])
async def test_a_leg_that_answers_alone_shows_no_turn_either(down: str) -> None:
    world = turned((TURN.id,), (TURN.id,))
    getattr(world, down).fault = "raise"

    answer = await world.ask()

    assert [hit.passage for hit in answer.hits] == ["About bleeding."]
    assert TURN.text not in answer.model_dump_json()


async def test_the_passage_is_the_cards_best_sub_chunk_and_its_own_text() -> None:
    chunks = [make_chunk(f"a:en:{n}", f"sentence {n}", title="A card") for n in (1, 2, 3)]
    hits = hits_of("a:en:2", "a:en:1", "a:en:3")

    (hit,) = (
        await World(
            chunks,
            FakeLeg("bm25", hits),
            FakeDenseLeg(hits=hits),
            FakeReranker({"A card: sentence 3": 1.0}),
        ).ask()
    ).hits

    assert (hit.chunk_id, hit.passage, hit.title) == ("a:en:3", "sentence 3", "A card")
    assert [source.name for source in hit.sources] == ["A label"]


# How the stages are


async def test_every_stage_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages_module, "STATUS_TIMEOUT_S", 0.01)
    world = World()
    world.dense.fault, world.reranker.fault = "hang", "crash"

    found = await world.pipeline.stages.statuses()

    assert {name: status.ok for name, status in found.items()} == {
        "bm25": True,
        "dense": False,
        "reranker": False,
    }
    assert found["bm25"].detail == "fake"
    assert "no answer" in found["dense"].detail
    assert found["reranker"].detail == "RuntimeError"


def test_warming_up_loads_what_detects_the_language() -> None:
    World().pipeline.warm_up()


# Properties


def world_of(bm25: list[str], dense: list[str], scored: int | None = None) -> World:
    """Eighteen sub-chunks of six cards; the reranker's scores have nothing to do with the order."""
    chunks = [make_chunk(f"{card}:en:{n}", f"{card}{n}") for card in "abcdef" for n in (1, 2, 3)]
    scores = {chunk.passage: float((7 * n) % 18 - 9) for n, chunk in enumerate(chunks)}
    return World(
        chunks,
        FakeLeg("bm25", hits_of(*bm25)),
        FakeDenseLeg(hits=hits_of(*dense)),
        FakeReranker(scores, first=scored),
    )


BODIES = st.fixed_dictionaries(
    {"top_k": st.integers(1, 8), "rerank": st.booleans(), "hybrid": st.booleans()}
)


@PROPERTY
@given(RANKINGS, RANKINGS, st.none() | st.integers(0, 12), BODIES)
def test_ranks_are_consecutive_cards_distinct_and_none_is_lost(
    bm25: list[str], dense: list[str], scored: int | None, body: dict[str, Any]
) -> None:
    answer = asyncio.run(world_of(bm25, dense, scored).ask(**body))

    cards = [hit.card_id for hit in answer.hits]
    found = {chunk_id[0] for chunk_id in (bm25 + dense if body["hybrid"] else dense)}
    assert [hit.rank for hit in answer.hits] == list(range(1, len(cards) + 1))
    assert len(cards) == len(set(cards)) == min(body["top_k"], len(found))
    assert set(cards) <= found
    assert (answer.hybrid_path == "no_match") == (not cards) == (answer.no_match_reason is not None)


@PROPERTY
@given(RANKINGS, RANKINGS, st.none() | st.integers(0, 12), BODIES)
def test_scores_of_one_kind_never_rise_down_the_list(
    bm25: list[str], dense: list[str], scored: int | None, body: dict[str, Any]
) -> None:
    answer = asyncio.run(world_of(bm25, dense, scored).ask(**body))

    for _, hits in itertools.groupby(answer.hits, key=lambda hit: hit.score_kind):
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)


@settings(PROPERTY, max_examples=5)
@given(RANKINGS, RANKINGS, st.none() | st.integers(0, 12), BODIES)
def test_the_same_question_gets_the_same_answer_twenty_times(
    bm25: list[str], dense: list[str], scored: int | None, body: dict[str, Any]
) -> None:
    answers = [
        without_timings(asyncio.run(world_of(bm25, dense, scored).ask(**body))) for _ in range(20)
    ]

    assert all(answer == answers[0] for answer in answers)


@PROPERTY
@given(RANKINGS, RANKINGS, st.integers(1, 5), st.integers(1, 5))
def test_the_answer_for_fewer_begins_the_answer_for_more(
    bm25: list[str], dense: list[str], top_k: int, more: int
) -> None:
    world = world_of(bm25, dense)

    short = asyncio.run(world.ask(top_k=top_k))
    long = asyncio.run(world.ask(top_k=top_k + more))

    assert long.hits[: len(short.hits)] == short.hits


@PROPERTY
@given(RANKINGS, RANKINGS, st.floats(-1, 1), st.floats(-1, 1))
def test_a_higher_floor_only_drops_hits(
    bm25: list[str], dense: list[str], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    world = world_of(bm25, dense)

    kept = cards_of(asyncio.run(world.ask(min_similarity=high, top_k=8)))
    before = cards_of(asyncio.run(world.ask(min_similarity=low, top_k=8)))

    assert [card for card in before if card in kept] == list(kept)


# Generations and vector spaces.


async def test_a_space_that_was_passed_over_is_in_degraded_and_the_path_stays_full() -> None:
    world = World()
    world.dense.passed_over = (("voyage-3.5", "rate_limited"),)

    answer = await world.ask()

    assert answer.hybrid_path == "full"
    assert degraded_of(answer) == {("dense", "rate_limited")}


async def test_a_similarity_outside_the_space_stays_unknown_and_the_hit_passes_the_cut() -> None:
    world = World()
    world.dense.cosines = {"a:en:1": None}

    answer = await world.ask(min_similarity=0.99, explain=True)

    (hit,) = [hit for hit in answer.hits if hit.card_id == "a"]
    assert hit.similarity is None


async def test_each_leg_is_asked_for_the_generation_that_the_answer_names() -> None:
    world = World()

    answer = await world.ask()

    asked = {query.generation for leg in (world.bm25, world.dense) for query in leg.asked}
    assert asked == {answer.generation}
