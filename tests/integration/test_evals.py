"""The evaluation command, from a folder to figures, with the models in the box."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evals.__main__ import main
from evals.evaluate import DEFAULT_PATHS
from evals.metrics import MEASURES
from kb.chunking import MAX_TOKENS, estimate_tokens
from running_service import MODELS

pytestmark = pytest.mark.integration

LONG = "alendronate"
DOCUMENTS = {
    "warfarin": "Warfarin is a blood thinner. Ibuprofen taken with it can cause serious bleeding.",
    "grapefruit": "Grapefruit juice raises the level of simvastatin in the blood.",
    "levothyroxine": "Take levothyroxine on an empty stomach, four hours before calcium or iron.",
    "missed": "If you forget a dose, take it when you remember, unless the next one is near.",
    "metformin": "Metformin can upset the stomach. Taking it with a meal helps.",
    "cost": "Ask your pharmacist about generic medicines when the price is too high.",
    "swallow": "Some tablets must not be crushed. A liquid may be easier to swallow.",
    "travel": "Carry your medicines in your hand luggage when you fly, with the prescription.",
    "inhaler": "Rinse your mouth after each puff of an inhaled steroid.",
    "insulin": "Keep insulin that you have not opened in the refrigerator, and never freeze it.",
    "antibiotic": "Finish the whole course of an antibiotic, even when you feel well again.",
    LONG: " ".join(
        f"{step} This keeps alendronate from hurting the gullet, where it may burn."
        for step in (
            "Swallow the tablet with a full glass of plain water in the morning.",
            "Stay upright, sitting or standing, for at least half an hour.",
            "Do not eat or drink anything but water before that half hour is over.",
            "Do not lie down again until you have had something to eat.",
            "Call your doctor when swallowing hurts or heartburn gets worse.",
        )
    ),
}
QUERIES = {
    "q1": "Can I take ibuprofen while I am on warfarin?",
    "q2": "Is grapefruit bad with my cholesterol pill simvastatin?",
    "q3": "How long do I have to wait with calcium after levothyroxine?",
    "q4": "I forgot my pill this morning, what should I do?",
    "q5": "Why must I stay upright after alendronate?",
    "q6": "My medicines are too expensive for me.",
}
QRELS = """\
query-id	corpus-id	score
q1	warfarin	2
q2	grapefruit	2
q3	levothyroxine	2
q4	missed	2
q4	antibiotic	1
q5	alendronate	2
q5	swallow	1
q6	cost	2
q6	travel	0
"""


@pytest.fixture(autouse=True)
def _no_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOYAGE_API_KEY", raising=False)


@pytest.fixture(scope="module")
def medicines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of twelve documents, one of which is cut into several sub-chunks."""
    folder = tmp_path_factory.mktemp("collections") / "medicines"
    folder.mkdir()
    assert estimate_tokens(DOCUMENTS[LONG]) > MAX_TOKENS
    _write_rows(folder / "corpus.jsonl", DOCUMENTS)
    _write_rows(folder / "queries.jsonl", QUERIES)
    (folder / "qrels.tsv").write_text(QRELS)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What these tests keep between runs, as a user does."""
    return tmp_path_factory.mktemp("evals")


def _write_rows(path: Path, texts: Mapping[str, str]) -> None:
    rows = (json.dumps({"_id": key, "title": "", "text": text}) for key, text in texts.items())
    path.write_text("".join(f"{row}\n" for row in rows))


def _run(folder: Path, cache: Path, file: Path, *flags: str) -> int:
    places = ["--json", str(file), "--cache", str(cache), "--models", str(MODELS)]
    return main(["run", str(folder), *places, *flags])


def _vectors(cache: Path) -> list[tuple[int, bytes]]:
    """List the kept vectors; one that is written again gets another row id."""
    (path,) = (cache / "vectors").glob("*.sqlite")
    with closing(sqlite3.connect(path)) as vectors:
        return vectors.execute("SELECT rowid, key FROM vectors ORDER BY rowid").fetchall()


@pytest.fixture(scope="module")
def first(medicines: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The figures of a first run."""
    file = tmp_path_factory.mktemp("figures") / "first.json"
    assert _run(medicines, cache, file) == 0
    return file


def _read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def test_a_run_measures_every_path_with_real_models(first: Path) -> None:
    result = _read(first)

    assert {path: found["taken"] for path, found in result["paths"].items()} == {
        path: {path: len(QUERIES)} for path in DEFAULT_PATHS
    }
    assert (result["collection"], result["queries"], result["documents"]) == ("medicines", 6, 12)
    assert (result["query_locale"], result["corpus_locale"]) == ("en", "en")
    assert result["rows"] > len(DOCUMENTS)
    assert result["embedders"][0].startswith("bge-small-en-v1.5 (384 dimensions")
    assert result["reranker"] == "ms-marco-MiniLM-L-12-v2"
    assert result["paths"]["full"]["degraded"] == {}
    assert result["paths"]["full"]["scored"] == 10.0


def test_every_figure_is_a_share_and_the_mean_of_its_queries(first: Path) -> None:
    for path, found in _read(first)["paths"].items():
        assert set(found["figures"]) == set(MEASURES), path
        for measure, figure in found["figures"].items():
            values = found["per_query"][measure]
            assert values.keys() == QUERIES.keys()
            assert 0 <= figure["low"] <= figure["mean"] <= figure["high"] <= 1
            assert figure["mean"] == pytest.approx(sum(values.values()) / 6, abs=1e-5)


def test_the_models_find_what_answers(first: Path) -> None:
    paths = _read(first)["paths"]

    for path in ("full", "rrf_only", "dense_only"):
        assert paths[path]["figures"]["Success@1"]["mean"] >= 0.8, path
        assert paths[path]["figures"]["R@100"]["mean"] == 1.0, path
    # Who forgot a pill is told of a dose that was missed: only the meaning is shared.
    assert paths["bm25_only"]["per_query"]["Success@1"]["q4"] == 0.0
    assert paths["dense_only"]["per_query"]["Success@1"]["q4"] == 1.0


def test_a_second_run_makes_no_vector_anew_and_gives_the_same_bytes(
    medicines: Path, cache: Path, first: Path, tmp_path: Path
) -> None:
    before = _vectors(cache)
    shutil.rmtree(cache / "kb")  # So that the passages are asked of the cache again.

    assert _run(medicines, cache, tmp_path / "second.json") == 0

    assert len(before) == _read(first)["rows"]
    assert _vectors(cache) == before
    assert (tmp_path / "second.json").read_bytes() == first.read_bytes()


def test_runs_that_are_equal_compare_alike_everywhere(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(first, tmp_path / "second.json")

    assert main(["compare", str(first), str(tmp_path / "second.json")]) == 0

    heading, settings, table = capsys.readouterr().out.strip().split("\n\n")
    assert heading.startswith("medicines, test: 6 queries")
    assert settings == "The settings are the same."
    rows = [row.split() for row in table.splitlines()[1:]]
    assert len(rows) == len(DEFAULT_PATHS) * len(MEASURES)
    assert {row[-1] for row in rows if row[1] != "Judged@10"} == {"alike"}


def test_a_setting_that_is_changed_is_named_with_the_result(
    medicines: Path, cache: Path, first: Path, tmp_path: Path
) -> None:
    file = tmp_path / "changed.json"

    assert _run(medicines, cache, file, "--set", "rrf_k=61", "--paths", "rrf_only") == 0

    result = _read(file)
    assert result["settings"] == _read(first)["settings"] | {"rrf_k": 61.0}
    assert result["settings"]["chunk_tokens"] == MAX_TOKENS
    assert list(result["paths"]) == ["rrf_only"]


def test_a_run_prints_its_figures_and_how_the_paths_compare(
    medicines: Path,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(medicines, cache, tmp_path / "x.json", "--limit", "3") == 0

    printed = capsys.readouterr().out
    assert printed.startswith("medicines, test: 3 queries (en), 12 documents (en) in")
    assert "full - rrf_only" in printed
    assert "degraded on bm25_only: dense:switched_off 3" in printed


def test_a_folder_that_is_not_there_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path / "nowhere", tmp_path / "cache", tmp_path / "x.json") == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"evals: {tmp_path}/nowhere/qrels.tsv is missing"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("paths", ["nonsense", "full,nonsense", "no_match", ""])
def test_a_path_that_does_not_exist_is_exit_code_2(
    medicines: Path, tmp_path: Path, paths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _run(medicines, tmp_path, tmp_path / "x.json", "--paths", paths)

    assert ended.value.code == 2
    assert f"unknown path {paths.rpartition(',')[2]!r}" in capsys.readouterr().err


def test_a_setting_that_does_not_exist_is_one_line_and_exit_code_2(
    medicines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(medicines, tmp_path, tmp_path / "x.json", "--set", "rrk_k=60") == 2

    assert capsys.readouterr().err.splitlines() == [
        "evals: unknown setting 'rrk_k'; did you mean 'rrf_k'?"
    ]
