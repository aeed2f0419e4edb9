"""The report: a text and a picture that say what was measured."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from evals.collection import load_collection
from evals.report import COLLECTIONS, write_report
from evals.results import Result
from fakes_evals import make_path, make_result
from kb.errors import InputError, WorkError

PANELS = (make_result(), make_result(collection="faquad-pt", query_locale="pt-BR"))


def report(folder: Path, *results: Result, sections: tuple[str, ...] = ()) -> str:
    write_report(results or PANELS, sections, folder)
    return (folder / "quality.md").read_text("utf-8")


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        report(tmp_path / name)

    for file in ("quality.md", "quality.svg"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_picture_is_an_image_that_the_text_shows(tmp_path: Path) -> None:
    text = report(tmp_path)

    assert ET.parse(tmp_path / "quality.svg").getroot().tag.endswith("svg")  # noqa: S314
    assert "![nDCG@10 of each path with 95 % intervals. SciFact (test): full 0.760" in text
    assert "](quality.svg)" in text


def test_each_collection_stands_with_its_licence_and_its_size(tmp_path: Path) -> None:
    text = report(tmp_path)

    link = "[SciFact](../evals/collections/scifact/SOURCE.md)"
    assert f"| {link} | test | 12 (en) | 24 (en) | claims and evidence CC BY 4.0;" in text
    assert "| 12 (pt-BR) | 24 (en) | CC BY 4.0." in text


@pytest.mark.parametrize(
    "folder", sorted(path for path in COLLECTIONS.iterdir() if path.is_dir()), ids=lambda p: p.name
)
def test_every_shipped_collection_names_its_licence(folder: Path, tmp_path: Path) -> None:
    text = report(tmp_path, make_result(collection=folder.name))

    assert "not in this repository" not in text
    assert load_collection(folder).queries


def test_each_table_stands_with_models_settings_and_intervals(tmp_path: Path) -> None:
    text = report(tmp_path, make_result(settings={"rrf_k": 20}))

    section = text.split("## SciFact (test)")[1]
    assert "reranker ms-marco-MiniLM-L-12-v2; rrf_k=20." in section
    assert "| full | 0.760 [0.760, 0.760] |" in section
    assert "| full 12 | 20.0 |" in section


def test_the_ordering_is_that_of_full_over_fused_over_the_better_leg(tmp_path: Path) -> None:
    ordering = report(tmp_path, make_result()).split("## Does each stage")[1].split("## ")[0]

    assert [row.split(" | ")[1:] for row in ordering.splitlines() if "SciFact" in row] == [
        ["full − rrf_only", "+0.380 [+0.380, +0.380]", "better |"],
        ["rrf_only − dense_only", "+0.160 [+0.160, +0.160]", "better |"],
    ]


def test_a_stage_that_does_harm_is_said_to(tmp_path: Path) -> None:
    paths = {"full": make_path([5] * 12), "rrf_only": make_path([1] * 12, "rrf_only")}

    text = report(tmp_path, make_result(paths=paths))

    assert "| SciFact (test) | full − rrf_only | -0.466 [-0.466, -0.466] | worse |" in text


def test_what_degraded_is_said(tmp_path: Path) -> None:
    path = make_path([1] * 12, "rrf_only", {"rerank:language": 12})

    assert "Degraded on full: rerank:language 12." in report(
        tmp_path, make_result(paths={"full": path})
    )


def test_the_command_repeats_the_run(tmp_path: Path) -> None:
    result = make_result(
        split="tuning-half",
        query_locale="detected",
        unit="parent",
        settings={"chunk_tokens": 120, "embedder_models": ["a", "b"], "rrf_k": 20},
        paths={"full": make_path([1] * 12)},
    )

    assert (
        "python -m evals run evals/collections/scifact --split tuning-half --locale detect "
        "--unit parent --paths full --chunk-tokens 120 --set embedder_models=a,b --set rrf_k=20\n"
    ) in report(tmp_path, result)


def test_two_runs_of_one_collection_have_headings_that_differ(tmp_path: Path) -> None:
    text = report(tmp_path, make_result(), make_result(settings={"rrf_k": 20}))

    assert "\n## SciFact (test)\n" in text
    assert "\n## SciFact (test), run 2\n" in text


def test_given_sections_follow_in_their_order(tmp_path: Path) -> None:
    text = report(tmp_path, sections=("## Golden set\n\nOne.\n", "## Evidence\n\nTwo."))

    assert text.endswith("\n\n## Golden set\n\nOne.\n\n## Evidence\n\nTwo.\n")


def test_a_collection_that_is_not_shipped_is_said_to_be_local(tmp_path: Path) -> None:
    text = report(tmp_path, make_result(collection="ours"))

    assert "| ours | test | 12 (en) | 24 (en) | local, not in this repository |" in text


def test_a_source_without_a_licence_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "ours" / "SOURCE.md"
    source.parent.mkdir()
    source.write_text("# Ours\n\n- Origin: ours.\n", "utf-8")

    with pytest.raises(InputError, match=r"ours/SOURCE\.md must have"):
        write_report([make_result(collection="ours")], (), tmp_path, tmp_path)


def test_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a result"):
        write_report([], (), tmp_path)


def test_a_folder_that_cannot_be_made_is_a_failure_of_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(WorkError, match="cannot be written"):
        write_report(PANELS, (), tmp_path / "file" / "docs")


def test_without_the_extra_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(WorkError, match=r"adherence-retrieval\[evals\]"):
        write_report(PANELS, (), tmp_path)
