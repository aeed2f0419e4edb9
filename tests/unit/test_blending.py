"""What the reranker says and what fusion said, combined."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_serve import make_chunk
from serve.blending import blend, window_of
from serve.candidates import Candidate

PROPERTY = settings(deadline=None, max_examples=100, derandomize=True)
SCORES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.tuples(st.floats(-12, 12), st.floats(0, 1)), min_size=1
)


def candidate(name: str, logit: float, fused: float) -> Candidate:
    chunk = make_chunk(name if ":" in name else f"{name}:en:1")
    return Candidate(chunk, {}, fused_score=fused, rerank_score=logit)


def blended(weight: float, *candidates: Candidate) -> str:
    return "".join(c.chunk.card_id for c in blend(candidates, weight))


def test_a_reranker_that_is_sure_overrules_fusion() -> None:
    assert blended(0.6, candidate("a", -9.0, 1.0), candidate("b", 5.0, 0.0)) == "ba"


def test_a_reranker_that_finds_nothing_relevant_leaves_the_order_to_fusion() -> None:
    # Of two logits far below nought the greater says no more than the less.
    assert blended(0.6, candidate("a", -11.0, 0.9), candidate("b", -8.0, 0.8)) == "ab"


def test_with_the_whole_weight_the_reranker_alone_decides() -> None:
    assert blended(1.0, candidate("a", -11.0, 0.9), candidate("b", -8.0, 0.8)) == "ba"


def test_without_weight_fusion_alone_decides() -> None:
    assert blended(0.0, candidate("a", -11.0, 0.9), candidate("b", 8.0, 0.8)) == "ab"


def test_of_equal_means_the_higher_logit_and_then_the_lower_id_comes_first() -> None:
    assert blended(1.0, candidate("b", 40.0, 0.5), candidate("a", 39.0, 0.5)) == "ba"
    assert blended(0.6, candidate("b", 1.0, 0.5), candidate("a", 1.0, 0.5)) == "ab"


def test_nothing_blends_to_nothing() -> None:
    assert blend([], 0.6) == []


@PROPERTY
@given(SCORES, st.floats(0, 1))
def test_every_candidate_stays_and_none_that_both_prefer_is_behind(
    scores: dict[str, tuple[float, float]], weight: float
) -> None:
    order = blend([candidate(name, *pair) for name, pair in scores.items()], weight)

    assert sorted(c.chunk.card_id for c in order) == sorted(scores)
    for before, after in pairwise(order):
        first, second = scores[before.chunk.card_id], scores[after.chunk.card_id]
        assert not (second[0] > first[0] and second[1] > first[1])


@PROPERTY
@given(SCORES, st.floats(0, 1), st.randoms(use_true_random=False))
def test_the_order_in_which_candidates_come_changes_nothing(
    scores: dict[str, tuple[float, float]], weight: float, random: object
) -> None:
    given_order = [candidate(name, *pair) for name, pair in scores.items()]
    shuffled = list(given_order)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert blend(shuffled, weight) == blend(given_order, weight)


# The window


@pytest.mark.parametrize(
    ("size", "window"),
    [
        (0, []),
        (2, ["a:en:1", "b:en:1"]),
        (3, ["a:en:1", "b:en:1", "c:en:1"]),
        (9, ["a:en:1", "b:en:1", "c:en:1", "a:en:2", "a:en:3"]),
    ],
)
def test_the_window_holds_the_best_of_each_card_before_a_second_of_any(
    size: int, window: list[str]
) -> None:
    ids = ["a:en:1", "a:en:2", "b:en:1", "a:en:3", "c:en:1"]
    candidates = [candidate(chunk_id, 0.0, 0.0) for chunk_id in ids]

    assert [c.chunk.id for c in window_of(candidates, size)] == window
