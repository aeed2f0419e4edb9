"""Measures against values that were worked out by hand."""

from __future__ import annotations

import sys
from math import log2

import pytest

from evals.metrics import MEASURES, score
from kb.errors import InputError, WorkError


def values(gains: dict[str, int], *ranking: str, scores: float | None = None) -> dict[str, float]:
    run = [
        (document, 1.0 / rank if scores is None else scores)
        for rank, document in enumerate(ranking, 1)
    ]
    scored = score({"q": gains}, {"q": run})
    return {measure: by_query["q"] for measure, by_query in scored.items()}


def test_graded_gains_count_by_their_grade_and_their_rank() -> None:
    found = values({"a": 2, "b": 1, "c": 0}, "b", "unjudged", "a", "c")

    gain = 1 / log2(2) + 2 / log2(4)
    ideal = 2 / log2(2) + 1 / log2(3)
    assert found == pytest.approx(
        {
            "nDCG@10": gain / ideal,
            "R@10": 1.0,
            "R@100": 1.0,
            "RR@10": 1.0,
            "P@5": 2 / 5,
            "Success@1": 1.0,
            "Judged@10": 3 / 4,
        }
    )


def test_a_document_with_gain_zero_is_judged_and_not_relevant() -> None:
    found = values({"a": 1, "c": 0}, "c", "a")

    assert (found["RR@10"], found["Success@1"], found["Judged@10"]) == (0.5, 0.0, 1.0)


def test_the_cutoff_is_where_the_name_says() -> None:
    others = [f"other-{number:02}" for number in range(9)]

    at_ten = values({"a": 1}, *others, "a")
    at_eleven = values({"a": 1}, *others, "other", "a")

    assert (at_ten["RR@10"], at_ten["R@10"]) == (0.1, 1.0)
    assert at_ten["nDCG@10"] == pytest.approx(1 / log2(11))
    assert (at_eleven["RR@10"], at_eleven["R@10"], at_eleven["nDCG@10"]) == (0.0, 0.0, 0.0)
    assert at_eleven["R@100"] == 1.0


@pytest.mark.parametrize("relevant", ["a", "z"])
@pytest.mark.parametrize("scores", [0.5, 0.0, -3.0])
def test_the_order_is_the_ranking_when_every_score_is_equal(relevant: str, scores: float) -> None:
    first = values({relevant: 1}, relevant, "m", "n", scores=scores)
    last = values({relevant: 1}, "m", "n", relevant, scores=scores)

    assert (first["Success@1"], first["RR@10"]) == (1.0, 1.0)
    assert (last["Success@1"], last["RR@10"]) == pytest.approx((0.0, 1 / 3))


def test_the_order_is_the_ranking_when_the_scores_say_otherwise() -> None:
    scored = score({"q": {"a": 1}}, {"q": [("a", 0.1), ("b", 0.9)]})

    assert {scored[name]["q"] for name in ("nDCG@10", "RR@10", "Success@1")} == {1.0}


def test_scores_that_single_precision_cannot_tell_apart_keep_their_order() -> None:
    scored = score({"q": {"a": 1}}, {"q": [("a", 1.0 + 1e-12), ("b", 1.0)]})

    assert scored["Success@1"]["q"] == 1.0


def test_a_query_without_results_counts_nothing_by_every_measure() -> None:
    scored = score({"empty": {"a": 1}, "missing": {"a": 1}}, {"empty": []})

    assert scored == {measure: {"empty": 0.0, "missing": 0.0} for measure in MEASURES}


def test_a_query_that_was_not_judged_is_left_out() -> None:
    scored = score({"q": {"a": 1}}, {"q": [("a", 1.0)], "other": [("a", 1.0)]})

    assert all(by_query.keys() == {"q"} for by_query in scored.values())


def test_a_ranking_that_names_a_document_twice_is_refused() -> None:
    with pytest.raises(InputError, match="'q' names a document twice"):
        score({"q": {"a": 1}}, {"q": [("a", 2.0), ("b", 1.5), ("a", 1.0)]})


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)

    with pytest.raises(WorkError, match=r"adherence-retrieval\[evals\]"):
        score({"q": {"a": 1}}, {})
