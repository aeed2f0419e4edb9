"""Two runs of one collection, side by side."""

from __future__ import annotations

from typing import Any

import pytest

from evals.compare import compare
from fakes_evals import QUERIES, make_path, make_result
from kb.errors import InputError


def line(text: str, *words: str) -> str:
    """Give the one line that begins with some words, without its padding."""
    (found,) = [
        " ".join(row.split()) for row in text.splitlines() if row.split()[: len(words)] == [*words]
    ]
    return found


def test_a_change_is_b_less_a_and_the_verdict_is_on_b() -> None:
    worse, better = (make_result(paths={"full": make_path([rank] * 12)}) for rank in (2, 1))

    assert line(compare(worse, better), "full", "RR@10") == (
        "full RR@10 0.500 1.000 +0.500 [+0.500, +0.500] better"
    )
    assert line(compare(better, worse), "full", "RR@10") == (
        "full RR@10 1.000 0.500 -0.500 [-0.500, -0.500] worse"
    )


def test_a_run_is_like_itself() -> None:
    result = make_result()

    text = compare(result, result)

    assert "The settings are the same." in text
    assert line(text, "rrf_only", "nDCG@10").endswith("+0.000 [+0.000, +0.000] alike")


def test_how_much_was_judged_is_neither_better_nor_worse() -> None:
    a, b = (make_result(paths={"full": make_path([rank] * 12)}) for rank in (0, 1))

    assert line(compare(a, b), "full", "Judged@10").endswith("+0.100]")


def test_settings_that_differ_are_named_and_no_others() -> None:
    a = make_result(settings={"chunk_tokens": 80, "rrf_k": 20})
    b = make_result(settings={"chunk_tokens": 80}, reranker=None)

    settings = compare(a, b).split("\n\n")[1]

    assert [" ".join(row.split()) for row in settings.splitlines()] == [
        "setting a b",
        "reranker ms-marco-MiniLM-L-12-v2 none",
        "rrf_k 20 as shipped",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"collection": "faquad-pt"},
        {"split": "train"},
        {"queries": 11},
        {"documents": 25},
        {"unit": "parent"},
    ],
)
def test_runs_of_other_things_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(change))} is"):
        compare(make_result(), make_result(**change))


def test_runs_of_as_many_other_queries_are_refused() -> None:
    path = make_path([1] * 12)
    renamed = {
        measure: {query_id.replace("q", "other"): value for query_id, value in values.items()}
        for measure, values in path.per_query.items()
    }
    other = make_result(paths={"full": path.model_copy(update={"per_query": renamed})})

    assert other.queries == len(QUERIES)
    with pytest.raises(InputError, match="of the same queries"):
        compare(make_result(), other)


def test_runs_without_a_common_path_are_refused() -> None:
    full = make_result(paths={"full": make_path([1] * 12)})
    lexical = make_result(paths={"bm25_only": make_path([1] * 12)})

    with pytest.raises(InputError, match="no path in common"):
        compare(full, lexical)
