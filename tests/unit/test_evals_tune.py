"""Settings are tried on queries that may be tuned on, and only real gains are marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from evals.tune import Trial, TuningSet, grid, summary, tune, tuning_set
from fakes_serve import World
from fakes_workbench import make_workbench, world_of
from kb.errors import InputError, SettingsError
from serve.settings import Settings

# The lexical leg finds a first and the dense leg d. Eleven queries are answered by d, one by a.
QRELS = {f"q{n:02}": {"d" if n < 11 else "a": 2} for n in range(12)}


def make_set(world: World, folder: Path, name: str = "made", **settings: float) -> TuningSet:
    workbench = make_workbench(world, folder / name, **settings)
    queries = {query_id: f"question {query_id}" for query_id in QRELS}
    return TuningSet(name, workbench, queries, QRELS, "en")


@pytest.fixture
def world() -> World:
    return world_of("abc", "def")


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()[1:]]


def test_every_combination_is_tried_once_and_in_order() -> None:
    parameters = {"rrf_k": ["10", "60"], "bm25_weight": ["0.5", "1", "2"]}

    found = list(grid(parameters))

    assert [(c["rrf_k"], c["bm25_weight"]) for c in found] == [
        ("10", "0.5"),
        ("10", "1"),
        ("10", "2"),
        ("60", "0.5"),
        ("60", "1"),
        ("60", "2"),
    ]


async def test_a_weight_that_is_better_comes_first_and_is_marked_and_a_worse_one_last(
    tmp_path: Path, world: World
) -> None:
    tries = {"bm25_weight": ["5", "0.2", "1"]}

    trials = await tune([make_set(world, tmp_path, bm25_weight=1)], tries, "rrf_only")
    first, *middle, last = rows(summary(trials))

    assert first.endswith("] + bm25_weight=0.2")
    assert last.endswith("] - bm25_weight=5")
    assert [row.rpartition("] ")[2] for row in middle] == ["(as set)", "bm25_weight=1"]
    assert all("+0.0000 [+0.0000, +0.0000]" in row for row in middle)


async def test_each_trial_keeps_every_querys_value_under_its_changes(
    tmp_path: Path, world: World
) -> None:
    tuning = make_set(world, tmp_path, bm25_weight=0.2)

    as_set, lexical = await tune([tuning], {"bm25_weight": ["5"]}, "rrf_only")

    assert (as_set.changes, lexical.changes) == ({}, {"bm25_weight": "5"})
    assert as_set.values["made"]["q00"] == lexical.values["made"]["q11"] == 1.0
    assert as_set.values["made"].keys() == QRELS.keys()
    assert lexical.values["made"]["q00"] < 1.0


async def test_the_path_that_is_named_is_the_one_that_counts(tmp_path: Path, world: World) -> None:
    tuning = make_set(world, tmp_path)

    (lexical, _) = await tune([tuning], {"rrf_k": ["60"]}, "bm25_only")
    (dense, _) = await tune([tuning], {"rrf_k": ["60"]}, "dense_only")

    assert lexical.mean == pytest.approx(1 / 12)
    assert dense.mean == pytest.approx(11 / 12)


async def test_the_legs_and_the_reranker_are_asked_once_however_many_trials(
    tmp_path: Path, world: World
) -> None:
    tuning = make_set(world, tmp_path)
    await tune([tuning], {}, "full")
    texts = [query.text for query in world.bm25.asked]
    pairs = {(query, passage) for query, seen, _, _ in world.reranker.asked for passage in seen}
    asked = len(world.reranker.asked)

    tries = {"bm25_weight": ["0.2", "1", "5"], "rerank_weight": ["0.1", "0.5", "0.9"]}
    trials = await tune([tuning], tries, "full")

    assert len(trials) == 10
    assert sorted(texts) == sorted(tuning.queries.values())
    assert len(world.bm25.asked) == len(world.dense.asked) == len(QRELS)
    assert len(pairs) == 6 * len(QRELS)
    assert len(world.reranker.asked) == asked


def trial(changes: Mapping[str, str], **sets: list[float]) -> Trial:
    values = {
        name: {f"q{n:02}": value for n, value in enumerate(found)} for name, found in sets.items()
    }
    return Trial(changes, values)


def test_every_set_counts_the_same_however_many_queries_it_has() -> None:
    assert trial({}, large=[1.0] * 9, small=[0.0]).mean == 0.5


def test_a_gain_is_marked_set_by_set_and_only_where_it_is_more_than_chance() -> None:
    as_set = trial({}, one=[0.5] * 12, other=[0.5] * 12)
    mixed = trial({"rrf_k": "60"}, one=[0.6] * 12, other=[0.9, 0.2] * 6)
    worse = trial({"rrf_k": "90"}, one=[0.5] * 12, other=[0.4] * 12)

    best, middle, last = rows(summary([as_set, mixed, worse]))

    assert best.startswith("0.5750 0.6000 +0.1000 [+0.1000, +0.1000] + 0.5500 +0.0500 [-")
    assert best.endswith("] rrf_k=60")  # Not marked: its interval holds 0.
    assert middle.endswith("(as set)")
    assert last.startswith("0.4500 0.5000 +0.0000 [+0.0000, +0.0000] 0.4000 -0.1000 [")
    assert last.endswith("] - rrf_k=90")


async def test_nothing_to_tune_on_is_refused() -> None:
    with pytest.raises(InputError, match="at least one collection"):
        await tune([], {"rrf_k": ["60"]}, "full")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rrk_k", "60", "unknown setting 'rrk_k'; did you mean 'rrf_k'"),
        ("rrf_k", "many", "'rrf_k'"),
        ("bm25_k1", "0.9", "'bm25_k1' cannot change while serving"),
        ("reranker_models", "ms-marco-MiniLM-L-12-v2", "cannot change while serving"),
    ],
)
async def test_a_setting_that_cannot_be_tried_is_refused_and_named(
    tmp_path: Path, world: World, name: str, value: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        await tune([make_set(world, tmp_path)], {name: [value]}, "rrf_only")


@pytest.mark.parametrize(
    "name",
    [
        "evals/collections/scifact:test",
        "evals/collections/scifact:reporting-half",
        "evals/collections/scifact",
        "golden",
        "",
    ],
)
def test_a_split_that_is_reported_is_never_tuned_on(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="train, tuning-half"):
        tuning_set(name, Settings(), tmp_path, None, None)


def test_the_golden_set_is_tuned_on_in_a_locale_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="en, es-419 or pt-BR"):
        tuning_set("golden:klingon", Settings(), tmp_path, None, None)


def test_a_collection_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*qrels\.train\.tsv"):
        tuning_set(f"{tmp_path}/nowhere:train", Settings(), tmp_path, None, None)
