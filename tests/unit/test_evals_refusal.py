"""What a threshold refuses that it should answer, and the other way round."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.refusal import STEP, Rates, curve, rates, recommend

BEST = st.lists(st.none() | st.floats(-1, 1), max_size=12)
PROPERTY = settings(deadline=None, max_examples=100, derandomize=True)


def test_the_rates_are_shares_of_their_own_queries() -> None:
    answerable = [0.9, 0.7, 0.5, None]
    unanswerable = [0.8, 0.4, None, 0.3, 0.2]

    assert rates(0.6, answerable, unanswerable) == Rates(0.6, 2 / 4, 1 / 5)
    assert rates(0.0, answerable, unanswerable) == Rates(0.0, 1 / 4, 4 / 5)
    assert rates(1.0, answerable, unanswerable) == Rates(1.0, 1.0, 0.0)


def test_a_similarity_at_the_threshold_is_answered_as_the_service_does() -> None:
    assert rates(0.5, [0.5], [0.5]) == Rates(0.5, 0.0, 1.0)


def test_without_queries_no_rate_is_wrong() -> None:
    assert rates(0.5, [], []) == Rates(0.5, 0.0, 0.0)
    assert curve([], []) == []
    assert curve([None], [None]) == []
    assert recommend([]) is None


def test_the_curve_has_a_point_a_hundredth_from_the_lowest_to_beyond_the_highest() -> None:
    found = curve([0.315, 0.52], [0.345])

    assert [point.threshold for point in found] == pytest.approx(
        [hundredth / 100 for hundredth in range(31, 54)]
    )
    assert (found[0].false_refusals, found[0].false_answers) == (0.0, 1.0)
    assert (found[-1].false_refusals, found[-1].false_answers) == (1.0, 0.0)


@PROPERTY
@given(BEST, BEST)
def test_a_higher_threshold_refuses_no_less_and_answers_no_more(
    answerable: list[float | None], unanswerable: list[float | None]
) -> None:
    for lower, higher in pairwise(curve(answerable, unanswerable)):
        assert higher.threshold == pytest.approx(lower.threshold + STEP)
        assert lower.false_refusals <= higher.false_refusals
        assert lower.false_answers >= higher.false_answers


def test_the_highest_threshold_within_the_limit_is_recommended() -> None:
    answerable = [0.4] + [0.6 + n / 1000 for n in range(99)]

    chosen = recommend(curve(answerable, [0.5] * 3 + [0.65]))

    assert chosen is not None
    assert chosen.threshold == pytest.approx(0.60)  # One in a hundred is refused, and no more.
    assert (chosen.false_refusals, chosen.false_answers) == (0.01, 0.25)


def test_the_order_of_the_points_does_not_matter() -> None:
    points = [Rates(0.1, 0.0, 1.0), Rates(0.3, 0.5, 0.0), Rates(0.2, 0.01, 0.5)]

    assert recommend(points) == recommend(points[::-1]) == points[2]
    assert recommend(points, at_most=0.0) == points[0]
    assert recommend(points, at_most=1.0) == points[1]


def test_where_every_threshold_refuses_too_much_none_is_recommended() -> None:
    assert recommend(curve([None, 0.5], [0.4])) is None


@pytest.mark.parametrize("best", [0.35, -0.055, 0.0, 0.29])
def test_the_lowest_threshold_refuses_nothing_that_has_a_hit(best: float) -> None:
    assert curve([best], [])[0].false_refusals == 0.0
