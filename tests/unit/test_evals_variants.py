"""Ways of fusing, each against the shipped one on its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.bootstrap import Difference
from evals.collection import Collection
from evals.variants import VARIANTS, Variant, compare_variants, variants_section
from fakes_serve import World
from fakes_workbench import make_workbench, world_of
from serve.settings import Settings, change_live

QUERY_IDS = [f"q{n:02}" for n in range(12)]
LIKES_A = {"A: text of a": 3.0}


def collection_of(best: str) -> Collection:
    """Twelve English questions that one card answers."""
    return Collection(
        "made",
        "test",
        (),
        {query_id: f"Can I take this medicine with milk, {query_id}?" for query_id in QUERY_IDS},
        {query_id: {best: 2} for query_id in QUERY_IDS},
    )


@pytest.fixture
def world() -> World:
    """The lexical leg and the reranker like a best, the dense leg d."""
    made = world_of("abc", "def")
    made.reranker.scores = LIKES_A
    return made


async def compare(world: World, folder: Path, best: str = "d") -> dict[str, Variant]:
    shipped = {"rrf_k": 10, "bm25_weight": 0.2, "rerank_weight": 0.0}
    workbench = make_workbench(world, folder, **shipped)
    return {v.name: v for v in await compare_variants(collection_of(best), workbench)}


async def test_each_variant_is_compared_with_the_shipped_settings_on_its_own_path(
    tmp_path: Path, world: World
) -> None:
    found = await compare(world, tmp_path)

    assert list(found) == list(VARIANTS)
    assert found["rrf_only as shipped"].gain == Difference(0.0, 0.0, 0.0)
    assert found["full as shipped"].gain == Difference(0.0, 0.0, 0.0)
    assert found["rrf_only as shipped"].mean == found["full as shipped"].mean == 1.0
    assert found["full, reranker alone"].mean < 1.0
    assert found["full, reranker alone"].gain.verdict == "worse"
    assert found["canonical RRF (k 60, equal weights)"].gain.verdict == "worse"


async def test_a_variant_that_is_better_is_said_to_be(tmp_path: Path, world: World) -> None:
    found = await compare(world, tmp_path, best="a")

    assert found["full, reranker alone"].mean == 1.0
    assert found["full, reranker alone"].gain.verdict == "better"
    assert found["full, 5 candidates"].gain.verdict == "alike"


async def test_what_cannot_run_in_the_language_is_left_out(tmp_path: Path, world: World) -> None:
    world.reranker.fault = "raise"  # As it does in a language that it does not cover.

    found = await compare(world, tmp_path)

    assert list(found) == [name for name, (path, _) in VARIANTS.items() if path == "rrf_only"]


def test_every_variant_can_be_set_while_serving() -> None:
    for path, changes in VARIANTS.values():
        assert path in {"rrf_only", "full"}
        change_live(Settings(), changes)


def test_the_shipped_settings_are_the_first_of_each_path() -> None:
    seen: dict[str, str] = {}
    for name, (path, _) in VARIANTS.items():
        seen.setdefault(path, name)

    assert seen == {"rrf_only": "rrf_only as shipped", "full": "full as shipped"}
    assert all(VARIANTS[name][1] == {} for name in seen.values())


def test_the_section_names_each_verdict_and_leaves_blank_what_did_not_run() -> None:
    shipped = Variant("rrf_only as shipped", 0.5, Difference(0.0, 0.0, 0.0))
    better = Variant("DBSF, 0.2 : 0.8", 0.6, Difference(0.1, 0.05, 0.15))
    worse = Variant("DBSF, 0.2 : 0.8", 0.4, Difference(-0.1, -0.15, -0.05))

    section = variants_section({"scifact": [shipped, better], "faquad-pt": [shipped, worse]})
    rows = {
        cells[0]: cells[1:]
        for row in section.splitlines()
        if len(cells := [cell.strip() for cell in row.strip("|").split("|")]) == 3
    }

    assert section.startswith("## ")
    assert rows[""] == ["scifact", "faquad-pt"]
    assert rows["rrf_only as shipped"] == ["0.500", "0.500"]
    assert rows["DBSF, 0.2 : 0.8"] == [
        "0.600 (+0.100 [+0.050, +0.150], better)",
        "0.400 (-0.100 [-0.150, -0.050], worse)",
    ]
    assert rows["full as shipped"] == ["", ""]
    assert set(VARIANTS) <= rows.keys()
