"""Intervals: what holds of any values, and two that are known."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.bootstrap import Difference, Interval, interval, paired_difference
from kb.errors import InputError

VALUES = st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1, max_size=20)
PAIRS = st.dictionaries(
    st.text(max_size=3), st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20
)
PROPERTY = settings(deadline=None, max_examples=25, derandomize=True)


def numbers(found: Interval) -> tuple[float, float, float]:
    return found.mean, found.low, found.high


@PROPERTY
@given(VALUES)
def test_the_interval_lies_within_the_values_and_is_the_same_again(
    values: dict[str, float],
) -> None:
    found = interval(values)

    assert min(values.values()) - 1e-12 <= found.low <= found.high <= max(values.values()) + 1e-12
    assert interval(dict(reversed(values.items()))) == found


@PROPERTY
@given(VALUES, st.floats(-5, 5))
def test_adding_a_number_to_every_value_moves_the_interval_by_it(
    values: dict[str, float], shift: float
) -> None:
    moved = interval({query_id: value + shift for query_id, value in values.items()})

    expected = [number + shift for number in numbers(interval(values))]
    assert numbers(moved) == pytest.approx(expected, abs=1e-9)


@PROPERTY
@given(VALUES)
def test_a_run_does_not_differ_from_itself(values: dict[str, float]) -> None:
    found = paired_difference(values, values)

    assert numbers(found) == (0.0, 0.0, 0.0)
    assert found.verdict == "alike"


@PROPERTY
@given(PAIRS)
def test_changing_places_changes_the_sign(
    pairs: dict[str, tuple[float, float]],
) -> None:
    a = {query_id: pair[0] for query_id, pair in pairs.items()}
    b = {query_id: pair[1] for query_id, pair in pairs.items()}

    there, back = paired_difference(a, b), paired_difference(b, a)

    assert numbers(there) == pytest.approx((-back.mean, -back.high, -back.low), abs=1e-9)


def test_values_that_are_all_equal_leave_no_doubt() -> None:
    assert numbers(interval({"a": 0.5, "b": 0.5, "c": 0.5})) == (0.5, 0.5, 0.5)


def test_the_interval_of_many_values_is_that_of_the_normal_approximation() -> None:
    count = 900
    values = {f"q{number}": float(number % 2) for number in range(count)}

    found = interval(values)

    margin = 1.96 * 0.5 / sqrt(count)
    assert numbers(found) == pytest.approx((0.5, 0.5 - margin, 0.5 + margin), abs=0.002)


def test_pairs_show_what_the_two_intervals_alone_would_hide() -> None:
    a = {f"q{number}": number / 10 for number in range(10)}
    b = {query_id: value + 0.01 for query_id, value in a.items()}

    assert interval(a).high > interval(b).low
    assert paired_difference(b, a).verdict == "better"
    assert paired_difference(a, b).verdict == "worse"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.02, "better"), (-0.02, -0.01, "worse"), (0.0, 0.02, "alike"), (-0.02, 0.0, "alike")],
)
def test_the_verdict_asks_whether_the_interval_leaves_out_zero(
    low: float, high: float, verdict: str
) -> None:
    assert Difference((low + high) / 2, low, high).verdict == verdict


def test_what_rounding_leaves_of_a_difference_is_none() -> None:
    thirds = {"a": round(1 / 3, 6), "b": 0.0, "c": 0.0}
    sixths = {"a": 0.0, "b": round(1 / 6, 6), "c": round(1 / 6, 6)}
    left = (sum(thirds.values()) - sum(sixths.values())) / 3

    assert left != 0
    assert Difference(left, left, left).verdict == "alike"


def test_an_interval_is_written_with_three_decimals_and_a_difference_with_its_sign() -> None:
    assert str(Interval(0.71249, 0.6, 1.0)) == "0.712 [0.600, 1.000]"
    assert str(Difference(-0.0001, -0.02, 0.0199)) == "+0.000 [-0.020, +0.020]"


def test_values_of_other_queries_are_refused() -> None:
    with pytest.raises(InputError, match="'b' is in one only"):
        paired_difference({"a": 1.0, "b": 1.0}, {"a": 1.0})


def test_no_values_at_all_are_refused() -> None:
    with pytest.raises(InputError, match="no query"):
        interval({})
