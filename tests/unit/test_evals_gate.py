"""Answers that got worse than those kept fail the gate, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.gate import compare_with_kept, keep
from evals.results import PathResult, Result
from fakes_evals import make_path, make_result
from kb.errors import InputError


def line(text: str, *words: str) -> str:
    """Give the one line that begins with some words, without its padding."""
    (found,) = [
        " ".join(row.split()) for row in text.splitlines() if row.split()[: len(words)] == [*words]
    ]
    return found


def result_of(ranks: list[int], name: str = "scifact") -> Result:
    return make_result(paths={"full": make_path(ranks)}, collection=name)


def renamed(path: PathResult) -> PathResult:
    per_query = {
        measure: {query_id.replace("q", "other"): value for query_id, value in values.items()}
        for measure, values in path.per_query.items()
    }
    return path.model_copy(update={"per_query": per_query})


def test_what_was_kept_is_as_good_as_itself(tmp_path: Path) -> None:
    results = [make_result(), make_result(collection="golden-en")]
    keep(results, tmp_path)

    text, worse = compare_with_kept(results, tmp_path)

    assert worse == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["golden-en.json", "scifact.json"]
    assert line(text, "golden-en", "rrf_only", "nDCG@10") == (
        "golden-en rrf_only nDCG@10 0.380 0.380 +0.000 [+0.000, +0.000] alike"
    )
    assert {row.split()[-1] for row in text.splitlines()[1:]} == {"alike"}
    assert len(text.splitlines()) == 1 + 2 * 4 * 7  # Collections, paths, measures.


def test_a_path_that_is_clearly_worse_is_counted_and_named(tmp_path: Path) -> None:
    keep([result_of([1] * 12)], tmp_path)

    text, worse = compare_with_kept([result_of([2] * 12)], tmp_path)

    assert line(text, "scifact", "full", "RR@10") == (
        "scifact full RR@10 1.000 0.500 -0.500 [-0.500, -0.500] worse"
    )
    assert line(text, "scifact", "full", "R@10").endswith("alike")
    assert worse == sum(row.endswith("worse") for row in text.splitlines()) > 0


def test_better_is_no_failure(tmp_path: Path) -> None:
    keep([result_of([2] * 12)], tmp_path)

    text, worse = compare_with_kept([result_of([1] * 12)], tmp_path)

    assert worse == 0
    assert line(text, "scifact", "full", "RR@10").endswith("+0.500 [+0.500, +0.500] better")


def test_one_query_in_twelve_that_got_worse_may_be_chance(tmp_path: Path) -> None:
    keep([result_of([1] * 12)], tmp_path)

    assert compare_with_kept([result_of([2] + [1] * 11)], tmp_path)[1] == 0


def test_one_collection_that_is_worse_is_not_made_good_by_another(tmp_path: Path) -> None:
    keep([result_of([1] * 12), result_of([3] * 12, "faquad-pt")], tmp_path)

    text, worse = compare_with_kept(
        [result_of([3] * 12), result_of([1] * 12, "faquad-pt")], tmp_path
    )

    assert worse > 0
    assert line(text, "scifact", "full", "nDCG@10").endswith("worse")
    assert line(text, "faquad-pt", "full", "nDCG@10").endswith("better")


def test_other_queries_cannot_be_compared_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    keep([result_of([1] * 12)], tmp_path)
    other = make_result(paths={"full": renamed(make_path([1] * 12))})

    with pytest.raises(InputError, match=r"scifact: its queries changed.*gate --keep"):
        compare_with_kept([other], tmp_path)


def test_a_path_that_is_no_longer_measured_is_refused(tmp_path: Path) -> None:
    keep([make_result()], tmp_path)

    with pytest.raises(InputError, match="rrf_only was kept, and is not measured now"):
        compare_with_kept([result_of([1] * 12)], tmp_path)


def test_a_collection_of_which_nothing_was_kept_is_refused_by_its_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"scifact\.json"):
        compare_with_kept([make_result()], tmp_path)


def test_what_is_kept_anew_takes_the_place_of_the_old(tmp_path: Path) -> None:
    keep([result_of([1] * 12)], tmp_path)
    keep([result_of([2] * 12)], tmp_path)

    assert compare_with_kept([result_of([2] * 12)], tmp_path)[1] == 0
