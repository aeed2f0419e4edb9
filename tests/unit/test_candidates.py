"""The score of a candidate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_serve import make_chunk
from serve.candidates import Candidate, sigmoid

CHUNK = make_chunk("a:en:1")


@pytest.mark.parametrize(("logit", "probability"), [(-8.1544, 0.000287), (6.1821, 0.997938)])
def test_the_sigmoid_of_a_rerank_score_is_taken_once(logit: float, probability: float) -> None:
    score, kind = Candidate(CHUNK, ranks={}, rerank_score=logit).score()

    assert kind == "rerank"
    assert score == pytest.approx(probability, abs=5e-7)


@pytest.mark.parametrize(
    ("logit", "probability"), [(0.0, 0.5), (1000.0, 1.0), (-1000.0, 0.0), (-745.0, 0.0)]
)
def test_extreme_logits_do_not_overflow(logit: float, probability: float) -> None:
    assert sigmoid(logit) == pytest.approx(probability, abs=1e-12)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_sigmoid_stays_between_zero_and_one_and_keeps_the_order(a: float, b: float) -> None:
    low, high = sorted((a, b))

    assert 0.0 <= sigmoid(low) <= sigmoid(high) <= 1.0


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.floats(-30, 30))
def test_the_sigmoid_is_symmetric(logit: float) -> None:
    assert sigmoid(logit) + sigmoid(-logit) == pytest.approx(1.0, abs=1e-12)


def test_the_score_is_that_of_the_last_stage_that_gave_one() -> None:
    everything: dict[str, Any] = {"bm25_score": 9.1, "similarity": 0.81, "fused_score": 0.0323}

    assert Candidate(CHUNK, {}, **everything, rerank_score=0.0).score() == (0.5, "rerank")
    assert Candidate(CHUNK, {}, **everything).score() == (0.0323, "fused")
    assert Candidate(CHUNK, {}, bm25_score=9.1).score() == (9.1, "bm25")
    assert Candidate(CHUNK, {}, similarity=0.81).score() == (0.81, "similarity")


@pytest.mark.parametrize("score", [0.0, -0.28])
def test_a_score_of_zero_or_less_is_still_a_score(score: float) -> None:
    assert Candidate(CHUNK, {}, bm25_score=score).score() == (score, "bm25")
    assert Candidate(CHUNK, {}, similarity=score).score() == (score, "similarity")
    assert Candidate(CHUNK, {}, fused_score=0.0, bm25_score=score).score() == (0.0, "fused")
