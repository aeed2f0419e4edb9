"""Results: their file, and their table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.results import PathResult, best_leg, read_result, steps_of, table, write_result
from fakes_evals import make_path, make_result
from kb.errors import InputError, WorkError


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = make_result(settings={"rrf_k": 20, "embedder_models": ["a", "b"], "note": "ação"})
    file = tmp_path / "new" / "result.json"

    write_result(result, file)

    assert read_result(file) == result


def test_the_same_result_gives_the_same_bytes_whatever_the_order_of_its_parts(
    tmp_path: Path,
) -> None:
    result = make_result()
    write_result(result, tmp_path / "a.json")
    write_result(
        make_result(paths=dict(reversed(result.paths.items()))),
        tmp_path / "b.json",
    )

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_figures_have_six_decimals() -> None:
    found = make_path([3] * 12)

    figure = found.figures["RR@10"]
    assert (figure.mean, figure.low, figure.high) == (0.333333, 0.333333, 0.333333)
    assert found.per_query["RR@10"]["q0"] == 0.333333


def test_a_file_that_is_no_result_is_named_with_what_is_wrong_in_it(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_result(make_result(), file)
    data = json.loads(file.read_text("utf-8"))
    data["paths"]["full"]["figures"]["nDCG@10"]["median"] = 0.5
    file.write_text(json.dumps(data), "utf-8")

    with pytest.raises(InputError, match=r"result\.json: paths\.full\.figures\.nDCG@10\.median"):
        read_result(file)


def test_a_file_that_is_not_json_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"collection": ', "utf-8")

    with pytest.raises(InputError, match=r"cut\.json: the file: Invalid JSON"):
        read_result(tmp_path / "cut.json")
    with pytest.raises(InputError, match=r"none\.json cannot be read"):
        read_result(tmp_path / "none.json")


def test_a_place_that_cannot_be_written_is_a_failure_of_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(WorkError, match="cannot be written"):
        write_result(make_result(), tmp_path / "file" / "result.json")


def test_figures_without_the_values_behind_them_are_refused() -> None:
    found = make_path([1] * 12)

    with pytest.raises(ValueError, match="the same measures"):
        PathResult(
            figures=found.figures,
            per_query={"nDCG@10": found.per_query["nDCG@10"]},
            taken={},
            degraded={},
            scored=0,
        )


def test_the_table_says_what_was_measured_and_with_what() -> None:
    heading = table(make_result(settings={"rrf_k": 20, "chunk_tokens": 80}))

    assert heading.startswith(
        "scifact, test: 12 queries (en), 24 documents (en) in 30 rows, by document\n"
        "bge-small-en-v1.5 (384 dimensions, revision int8); reranker ms-marco-MiniLM-L-12-v2; "
        "chunk_tokens=80, rrf_k=20\n"
    )


def test_the_table_has_a_line_a_path_that_begins_with_the_one_of_most_stages() -> None:
    lines = table(make_result()).splitlines()

    start = next(number for number, line in enumerate(lines) if "R@100" in line)
    assert lines[start].split() == [
        *("nDCG@10", "R@10", "R@100", "RR@10", "P@5", "Success@1", "Judged@10"),
        *("taken", "reranked"),
    ]
    paths = [line.split()[0] for line in lines[start + 1 : start + 5]]
    assert paths == ["full", "rrf_only", "dense_only", "bm25_only"]
    assert "1.000 [1.000, 1.000]" in lines[start + 1]
    assert lines[start + 1].split()[-3:] == ["full", "12", "20.0"]


def test_below_the_table_stands_how_the_paths_compare() -> None:
    compared = table(make_result()).split("\n\n")[-1].splitlines()

    assert [" ".join(line.split()) for line in compared] == [
        "nDCG@10, paired difference",
        "full - rrf_only +0.380 [+0.380, +0.380] better",
        "rrf_only - dense_only +0.160 [+0.160, +0.160] better",
        "rrf_only - bm25_only +0.317 [+0.190, +0.380] better",
    ]


def test_the_table_says_what_degraded_and_which_path_was_taken() -> None:
    path = make_path([1] * 12, "rrf_only", {"rerank:language": 12})

    text = table(make_result(paths={"full": path}))

    assert "degraded on full: rerank:language 12" in text
    assert "rrf_only 12" in text


def test_only_paths_that_were_measured_are_compared() -> None:
    result = make_result(paths={"full": make_path([1] * 12), "bm25_only": make_path([2] * 12)})

    assert steps_of(result) == []
    assert best_leg(result) == "bm25_only"


def test_the_best_leg_is_the_one_that_finds_more() -> None:
    result = make_result()

    assert best_leg(result) == "dense_only"
    assert best_leg(make_result(paths={"full": result.paths["full"]})) is None
