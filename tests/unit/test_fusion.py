"""Fusion by ranks and by scores."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.types import Hit
from serve.fusion import FusedHit, FusionMethod, reciprocal_rank_fusion
from serve.fusion import fuse as fuse_by

K = 60
IDS = st.sampled_from([f"c{number}" for number in range(12)])
RANKINGS = st.dictionaries(
    st.sampled_from(["bm25", "dense", "third"]), st.lists(IDS, unique=True), max_size=3
)
WEIGHTS = st.dictionaries(
    st.sampled_from(["bm25", "dense", "third"]), st.floats(0.01, 100), max_size=3
)
PROPERTY = settings(deadline=None, max_examples=100, derandomize=True)


def fuse(**rankings: list[str]) -> list[FusedHit]:
    return reciprocal_rank_fusion(rankings, {}, K)


def test_ranks_start_at_one_and_add_up_over_the_legs() -> None:
    fused = fuse(dense=["X", "a", "Y"], bm25=["b", "c", "Y"])

    assert [(hit.chunk_id, hit.fused_score) for hit in fused] == [
        ("Y", 1 / (K + 3) + 1 / (K + 3)),
        ("X", 1 / (K + 1)),
        ("b", 1 / (K + 1)),
        ("a", 1 / (K + 2)),
        ("c", 1 / (K + 2)),
    ]


def test_a_sub_chunk_that_is_first_in_both_legs_is_one_entry() -> None:
    (hit,) = fuse(dense=["a"], bm25=["a"])

    assert hit.fused_score == pytest.approx(2 / 61, abs=1e-15)
    assert hit.ranks == {"dense": 1, "bm25": 1}


def test_a_leg_that_did_not_find_a_sub_chunk_adds_nothing() -> None:
    fused = {hit.chunk_id: hit for hit in fuse(dense=["a", "b"], bm25=["b"])}

    assert fused["a"].fused_score == 1 / (K + 1)
    assert fused["a"].ranks == {"dense": 1}
    assert fused["b"].fused_score == pytest.approx(1 / (K + 2) + 1 / (K + 1), abs=1e-15)


@pytest.mark.parametrize(
    ("dense", "bm25"), [(["A", "B"], ["B", "A"]), (["B", "A"], ["A", "B"]), (["B"], ["A"])]
)
def test_equal_scores_are_ordered_by_id_every_time(dense: list[str], bm25: list[str]) -> None:
    for _ in range(100):
        assert [hit.chunk_id for hit in fuse(dense=dense, bm25=bm25)] == ["A", "B"]


def test_swapped_ranks_give_exactly_equal_scores() -> None:
    a, b = fuse(dense=["A", "B"], bm25=["B", "A"])

    assert a.fused_score == b.fused_score == pytest.approx(0.0325225, abs=1e-7)


def test_weights_scale_a_leg() -> None:
    fused = reciprocal_rank_fusion(
        {"dense": ["a"], "bm25": ["b"]}, {"dense": 0.5, "bm25": 2.0}, rrf_k=10
    )

    assert [(hit.chunk_id, hit.fused_score) for hit in fused] == [("b", 2 / 11), ("a", 0.5 / 11)]


def test_nothing_fuses_to_nothing() -> None:
    assert reciprocal_rank_fusion({}, {}, K) == []
    assert fuse(dense=[], bm25=[]) == []


@PROPERTY
@given(RANKINGS, WEIGHTS)
def test_the_order_in_which_the_legs_are_named_changes_nothing(
    rankings: dict[str, list[str]], weights: dict[str, float]
) -> None:
    turned = dict(reversed(rankings.items()))

    assert reciprocal_rank_fusion(turned, weights, K) == reciprocal_rank_fusion(
        rankings, weights, K
    )


@PROPERTY
@given(RANKINGS, WEIGHTS)
def test_every_ranked_sub_chunk_is_fused_once_and_no_other(
    rankings: dict[str, list[str]], weights: dict[str, float]
) -> None:
    fused = [hit.chunk_id for hit in reciprocal_rank_fusion(rankings, weights, K)]

    assert len(fused) == len(set(fused))
    assert set(fused) == {chunk_id for ranking in rankings.values() for chunk_id in ranking}


@PROPERTY
@given(RANKINGS, WEIGHTS)
def test_the_order_is_total_by_score_and_then_by_id(
    rankings: dict[str, list[str]], weights: dict[str, float]
) -> None:
    keys = [
        (-hit.fused_score, hit.chunk_id) for hit in reciprocal_rank_fusion(rankings, weights, K)
    ]

    assert all(before < after for before, after in pairwise(keys))


@PROPERTY
@given(RANKINGS, WEIGHTS)
def test_a_sub_chunk_ranked_no_worse_by_every_leg_is_never_behind(
    rankings: dict[str, list[str]], weights: dict[str, float]
) -> None:
    fused = reciprocal_rank_fusion(rankings, weights, K)
    places = {hit.chunk_id: place for place, hit in enumerate(fused)}
    for a in fused:
        for b in fused:
            behind_in_no_leg = set(b.ranks) <= set(a.ranks) and all(
                a.ranks[leg] <= rank for leg, rank in b.ranks.items()
            )
            if behind_in_no_leg and a.fused_score != b.fused_score:
                assert places[a.chunk_id] < places[b.chunk_id]


@PROPERTY
@given(RANKINGS, WEIGHTS, st.floats(0.5, 1000))
def test_scores_are_the_formula_of_the_ranks(
    rankings: dict[str, list[str]], weights: dict[str, float], rrf_k: float
) -> None:
    for hit in reciprocal_rank_fusion(rankings, weights, rrf_k):
        by_hand = sum(
            weights.get(leg, 1.0) / (rrf_k + ranking.index(hit.chunk_id) + 1)
            for leg, ranking in rankings.items()
            if hit.chunk_id in ranking
        )
        assert hit.fused_score == pytest.approx(by_hand, rel=1e-12)


# By scores

METHODS = st.sampled_from(get_args(FusionMethod))
SCORED = st.dictionaries(
    st.sampled_from(["bm25", "dense"]),
    st.dictionaries(IDS, st.floats(-1, 50), max_size=8),
    min_size=2,
)


def ranked(scores: dict[str, float]) -> list[Hit]:
    return [Hit(i, s) for i, s in sorted(scores.items(), key=lambda item: (-item[1], item[0]))]


def fused_by(method: FusionMethod, **rankings: dict[str, float]) -> list[tuple[str, float]]:
    weights = {"bm25": 0.25, "dense": 0.75}
    fused = fuse_by({leg: ranked(r) for leg, r in rankings.items()}, weights, method, K)
    return [(hit.chunk_id, round(hit.fused_score, 6)) for hit in fused]


def test_min_max_scales_each_leg_to_its_own_best_and_worst() -> None:
    assert fused_by("min_max", bm25={"a": 9.0, "b": 3.0}, dense={"b": 0.8, "c": 0.7, "d": 0.6}) == [
        ("b", 0.75),
        ("c", 0.375),
        ("a", 0.25),
        ("d", 0.0),
    ]


def test_theoretical_min_max_starts_from_the_least_that_a_score_can_be() -> None:
    assert fused_by("theoretical_min_max", bm25={"a": 8.0, "b": 2.0}, dense={"c": 0.6}) == [
        ("c", 0.75),
        ("a", 0.25),
        ("b", 0.0625),
    ]


def test_distribution_based_fusion_scales_by_three_deviations() -> None:
    # Of 1 and 3 the mean is 2 and the deviation 1: -1 becomes 0 and 5 becomes 1.
    assert fused_by("dbsf", bm25={"a": 3.0, "b": 1.0}, dense={}) == [
        ("a", round(0.25 * 4 / 6, 6)),
        ("b", round(0.25 * 2 / 6, 6)),
    ]


@pytest.mark.parametrize("method", get_args(FusionMethod))
def test_scores_that_are_all_alike_do_not_divide_by_nought(method: FusionMethod) -> None:
    fused = fused_by(method, bm25={"b": -0.5}, dense={"a": 0.5, "c": 0.5})

    assert fused[0][0] == "a"


@PROPERTY
@given(SCORED, METHODS)
def test_whatever_the_method_every_hit_is_fused_once_in_a_total_order(
    scores: dict[str, dict[str, float]], method: FusionMethod
) -> None:
    rankings = {leg: ranked(found) for leg, found in scores.items()}

    fused = fuse_by(rankings, {"bm25": 0.5}, method, K)

    keys = [(-hit.fused_score, hit.chunk_id) for hit in fused]
    assert all(before < after for before, after in pairwise(keys))
    assert {hit.chunk_id for hit in fused} == {i for found in scores.values() for i in found}
    for hit in fused:
        assert hit.ranks == {
            leg: [h.chunk_id for h in ranking].index(hit.chunk_id) + 1
            for leg, ranking in rankings.items()
            if hit.chunk_id in scores[leg]
        }


@PROPERTY
@given(SCORED, METHODS)
def test_a_leg_of_weight_nought_moves_nothing_that_the_other_found(
    scores: dict[str, dict[str, float]], method: FusionMethod
) -> None:
    rankings = {leg: ranked(found) for leg, found in scores.items()}
    fused = fuse_by(rankings, {"bm25": 0.0}, method, K)
    alone = fuse_by({"dense": rankings["dense"]}, {}, method, K)

    known = scores["dense"]
    assert [h.chunk_id for h in fused if h.chunk_id in known] == [h.chunk_id for h in alone]
