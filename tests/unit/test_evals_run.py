"""A collection's queries, asked by one path after the other, over fake stages."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase

import pytest

from evals.evaluate import DEFAULT_PATHS
from evals.run import PathRun, run_path
from evals.workbench import Workbench
from fakes_serve import World
from fakes_workbench import make_workbench, world_of
from serve.schemas import HybridPath

QUERIES = {"q1": "can I take it?", "q2": "and with milk?"}
FIFTEEN = ascii_lowercase[:15]
LAST_FIRST = {f"{c.upper()}: text of {c}": float(n) for n, c in enumerate(FIFTEEN)}


async def ask(
    workbench: Workbench,
    path: HybridPath = "full",
    parents: dict[str, str] | None = None,
    *,
    deep: bool = False,
) -> PathRun:
    return await run_path(
        workbench, path, workbench.settings, QUERIES, "en", parents, None, deep=deep
    )


def cards(found: PathRun, query_id: str = "q1") -> str:
    return "".join(card for card, _ in found.run[query_id])


@pytest.mark.parametrize("path", DEFAULT_PATHS)
async def test_each_path_is_the_one_that_it_names(tmp_path: Path, path: HybridPath) -> None:
    found = await ask(make_workbench(World(), tmp_path), path)

    assert found.taken == {path: 2}
    assert {answer.hybrid_path for answer in found.answers.values()} == {path}
    assert (
        cards(found)
        == {
            "full": "cab",
            "rrf_only": "bac",
            "dense_only": "bc",
            "bm25_only": "ab",
        }[path]
    )


async def test_every_query_is_asked_as_it_stands_in_the_locale_that_is_named(
    tmp_path: Path,
) -> None:
    world = World()
    workbench = make_workbench(world, tmp_path)

    found = await run_path(workbench, "full", workbench.settings, QUERIES, "pt-BR")
    asked = [(query.text, query.locale) for query in world.bm25.asked]

    assert sorted(asked) == [("and with milk?", "pt-BR"), ("can I take it?", "pt-BR")]
    assert found.answers.keys() == found.run.keys() == QUERIES.keys()


async def test_without_a_locale_the_service_detects_it(tmp_path: Path) -> None:
    world = World()
    workbench = make_workbench(world, tmp_path)
    queries = {"q1": "¿Puedo tomar ibuprofeno con warfarina?"}

    await run_path(workbench, "rrf_only", workbench.settings, queries, None)

    assert world.bm25.asked[0].locale == "es-419"


async def test_scores_fall_with_the_rank(tmp_path: Path) -> None:
    found = await ask(make_workbench(World(), tmp_path))

    assert found.run["q1"] == [("c", 1.0), ("a", 1 / 2), ("b", 1 / 3)]


async def test_what_is_degraded_and_what_is_taken_are_counted_by_query(tmp_path: Path) -> None:
    world = World()
    world.reranker.fault = "raise"

    found = await ask(make_workbench(world, tmp_path))

    assert found.taken == {"rrf_only": 2}
    assert found.degraded == {"rerank:down": 2}
    assert found.scored == 0.0


async def test_the_lexical_path_alone_says_that_the_dense_leg_was_off(tmp_path: Path) -> None:
    world = World()

    found = await ask(make_workbench(world, tmp_path), "bm25_only")

    assert found.degraded == {"dense:switched_off": 2}
    assert world.dense.asked == []


async def test_the_dense_path_alone_asks_nothing_of_the_others(tmp_path: Path) -> None:
    world = World()

    found = await ask(make_workbench(world, tmp_path), "dense_only")

    assert found.degraded == {}
    assert world.bm25.asked == []
    assert world.reranker.asked == []


async def test_how_many_candidates_were_reranked_is_a_mean_over_the_queries(
    tmp_path: Path,
) -> None:
    assert (await ask(make_workbench(World(), tmp_path))).scored == pytest.approx(3.0)


async def test_a_parent_stands_where_its_best_card_stood_and_once(tmp_path: Path) -> None:
    parents = {"a": "p", "b": "q", "c": "q"}

    found = await ask(make_workbench(World(), tmp_path), parents=parents)

    assert found.run["q1"] == [("q", 1.0), ("p", 1 / 2)]
    assert [hit.card_id for hit in found.answers["q1"].hits] == ["c", "a", "b"]


async def test_ten_cards_are_asked_for(tmp_path: Path) -> None:
    world = world_of(FIFTEEN, FIFTEEN)
    world.reranker.scores = LAST_FIRST

    found = await ask(make_workbench(world, tmp_path))

    assert cards(found) == "jihgfedcba"  # Ten are reranked, the best by fusion.


async def test_deep_adds_what_is_beyond_ten_and_leaves_the_first_ten(tmp_path: Path) -> None:
    world = world_of(FIFTEEN, FIFTEEN)
    world.reranker.scores = LAST_FIRST
    workbench = make_workbench(world, tmp_path)

    found = await ask(workbench, deep=True)

    assert cards(found) == "jihgfedcba" + "klmno"
    assert found.taken == {"full": 2}
    assert [hit.card_id for hit in found.answers["q1"].hits] == [*"jihgfedcba"]
    assert len(world.reranker.asked[-1][1]) == 10


async def test_progress_is_told_up_to_the_last_query(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    workbench = make_workbench(World(), tmp_path)

    await run_path(
        workbench,
        "full",
        workbench.settings,
        QUERIES,
        "en",
        progress=lambda label, done, total: told.append((label, done, total)),
    )

    assert told == [("full", 1, 2), ("full", 2, 2)]
