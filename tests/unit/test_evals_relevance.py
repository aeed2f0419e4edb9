"""A curve is fitted on some hits and checked on others, by figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evals.relevance import JudgedHit, check, fit
from fakes_serve import make_chunk
from kb.errors import InputError
from serve.calibration import Calibration, Curve
from serve.candidates import Candidate


def judged(reranked: bool = False, count: int = 200) -> list[JudgedHit]:
    """Relevant hits lie about 0.7, with logits about 2; the others about 0.5, and about -2."""
    draw = np.random.default_rng(7)
    return [
        JudgedHit(
            draw.normal(0.7 if relevant else 0.5, 0.08),
            draw.normal(2 if relevant else -2, 1.5) if reranked else None,
            relevant,
        )
        for relevant in (True, False) * (count // 2)
    ]


def probability(curve: Curve, similarity: float, rerank_score: float | None = None) -> float:
    """Ask the service's own reading of a curve."""
    hit = Candidate(
        make_chunk("a:en:1"), ranks={}, similarity=similarity, rerank_score=rerank_score
    )
    found = Calibration(fitted_on="", curves=(curve,)).relevance(hit, curve.space, curve.reranker)
    assert found is not None
    return found


def test_a_more_similar_hit_is_more_probably_relevant() -> None:
    curve = fit(judged(), "bge", None)

    assert (curve.space, curve.reranker, curve.rerank) == ("bge", None, 0.0)
    assert curve.similarity > 0
    assert probability(curve, 0.5) < 0.2
    assert probability(curve, 0.6) == pytest.approx(0.5, abs=0.15)
    assert probability(curve, 0.7) > 0.8


def test_what_the_reranker_says_counts_beside_the_similarity() -> None:
    curve = fit(judged(reranked=True), "bge", "ms-marco")

    assert (curve.space, curve.reranker) == ("bge", "ms-marco")
    assert min(curve.similarity, curve.rerank) > 0
    assert probability(curve, 0.6, -3.0) < 0.5 < probability(curve, 0.6, 3.0)
    assert probability(curve, 0.5, 0.0) < probability(curve, 0.7, 0.0)


def test_without_a_reranker_its_scores_are_not_looked_at() -> None:
    assert fit(judged(reranked=True), "bge", None) == fit(
        [replace(hit, rerank_score=None) for hit in judged(reranked=True)], "bge", None
    )


def test_the_mean_probability_is_the_share_that_is_relevant() -> None:
    hits = [hit for n, hit in enumerate(judged()) if hit.relevant or n % 4 == 1]

    curve = fit(hits, "bge", None)

    mean = math.fsum(probability(curve, hit.similarity) for hit in hits) / len(hits)
    assert mean == pytest.approx(100 / 150, abs=0.01)


@pytest.mark.parametrize("relevant", [True, False])
def test_hits_that_are_all_alike_are_refused(relevant: bool) -> None:
    alike = [hit for hit in judged() if hit.relevant == relevant]

    with pytest.raises(InputError, match="bge"):
        fit(alike, "bge", None)


def test_no_hits_are_refused() -> None:
    with pytest.raises(InputError):
        fit([], "bge", None)
    with pytest.raises(InputError):
        check([], [])


def test_the_figures_are_those_worked_out_by_hand() -> None:
    found = check([0.9, 0.8, 0.6, 0.3], [True, False, True, False])

    assert (found.hits, found.relevant) == (4, 2)
    assert found.brier == pytest.approx((0.01 + 0.64 + 0.16 + 0.09) / 4)
    assert found.base_brier == 0.25
    assert found.auc == 3 / 4  # 0.9 is above both, 0.6 above one of the two.
    assert found.calibration_error == pytest.approx((0.1 + 0.8 + 0.4 + 0.3) / 4)


def test_hits_of_one_bin_are_compared_together() -> None:
    found = check([0.51, 0.52, 0.57, 1.0], [True, False, True, True])

    assert found.calibration_error == pytest.approx(abs(1.6 - 2) / 4)


def test_equal_probabilities_win_half() -> None:
    assert check([0.5, 0.5, 0.5], [True, False, False]).auc == 0.5
    assert check([0.5, 0.5, 0.4], [True, False, False]).auc == 0.75


def test_perfect_and_perfectly_wrong_are_the_ends() -> None:
    right = check([1.0, 0.0], [True, False])
    wrong = check([0.0, 1.0], [True, False])

    assert (right.brier, right.auc, right.calibration_error) == (0.0, 1.0, 0.0)
    assert (wrong.brier, wrong.auc, wrong.calibration_error) == (1.0, 0.0, 1.0)


def test_where_all_are_relevant_there_is_no_auc() -> None:
    found = check([0.5, 0.6], [True, True])

    assert math.isnan(found.auc)
    assert found.base_brier == 0.0
