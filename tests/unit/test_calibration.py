"""From a hit's evidence to the probability that it helps, where a curve was fitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_serve import make_chunk
from kb.errors import SettingsError
from serve.calibration import Calibration, Curve, load_calibration
from serve.candidates import Candidate

MODEL = "ms-marco"
FITTED = Calibration(
    fitted_on="twelve queries",
    curves=(
        Curve(space="bge", reranker=None, intercept=-4.0, similarity=8.0),
        Curve(space="bge", reranker=MODEL, intercept=-5.0, similarity=6.0, rerank=3.0),
        Curve(space="e5", reranker=None, intercept=-2.0, similarity=2.0),
    ),
)
COSINES = st.floats(-1, 1)
PROPERTY = settings(deadline=None, max_examples=100, derandomize=True)


def hit(similarity: float | None, rerank_score: float | None = None) -> Candidate:
    return Candidate(
        make_chunk("a:en:1"), ranks={}, similarity=similarity, rerank_score=rerank_score
    )


def test_a_hit_that_was_not_reranked_has_the_curve_of_its_space() -> None:
    assert FITTED.relevance(hit(0.5), "bge", None) == 0.5  # -4 + 8 * 0.5 = 0.
    assert FITTED.relevance(hit(1.0), "e5", None) == 0.5  # -2 + 2 * 1 = 0.


def test_a_reranked_hit_has_the_curve_of_its_space_and_reranker() -> None:
    # A logit of 0 is a half: -5 + 6 * 0.75 + 3 * 0.5 = 1, whose sigmoid is 0.731.
    assert FITTED.relevance(hit(0.75, 0.0), "bge", MODEL) == pytest.approx(0.731059)


def test_a_hit_that_the_reranker_did_not_reach_has_the_curve_without_it() -> None:
    assert FITTED.relevance(hit(0.5), "bge", MODEL) == 0.5


@pytest.mark.parametrize(
    ("found", "space", "reranker"),
    [
        (hit(None), "bge", None),
        (hit(None, 2.0), "bge", MODEL),
        (hit(0.5), None, None),
        (hit(0.5), "voyage", None),
        (hit(0.5, 2.0), "bge", "another"),
        (hit(0.5, 2.0), "e5", MODEL),
    ],
)
def test_evidence_that_no_curve_was_fitted_on_has_no_probability(
    found: Candidate, space: str | None, reranker: str | None
) -> None:
    assert FITTED.relevance(found, space, reranker) is None


@PROPERTY
@given(
    st.floats(-50, 50),
    st.floats(0.01, 50),
    st.floats(-50, 50),
    st.floats(-20, 20),
    COSINES,
    COSINES,
)
def test_it_is_a_probability_that_rises_with_the_similarity(  # noqa: PLR0913, PLR0917
    intercept: float, weight: float, rerank: float, logit: float, one: float, other: float
) -> None:
    curve = Curve(space="s", reranker="m", intercept=intercept, similarity=weight, rerank=rerank)
    calibration = Calibration(fitted_on="", curves=(curve,))

    low, high = (
        calibration.relevance(hit(cosine, logit), "s", "m") for cosine in sorted((one, other))
    )

    assert low is not None
    assert high is not None
    assert 0.0 <= low <= high <= 1.0
    if abs(one - other) > 0.5 and 1e-6 < low < 1 - 1e-6:
        assert low < high


def write(folder: Path, curve: dict[str, Any], **others: Any) -> Path:
    whole = {"space": "bge", "reranker": None, "intercept": -4.0, "similarity": 8.0}
    path = folder / "calibration.json"
    path.write_text(json.dumps({"fitted_on": "x", "curves": [whole | curve], **others}))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(FITTED.model_dump_json())

    assert load_calibration(path) == FITTED


def test_without_a_file_there_is_no_calibration(tmp_path: Path) -> None:
    assert load_calibration(None) is None
    assert load_calibration(tmp_path / "calibration.json") is None


@pytest.mark.parametrize(
    ("curve", "others", "field"),
    [
        ({"similarity": "steep"}, {}, "curves.0.similarity"),
        ({"intercept": float("nan")}, {}, "curves.0.intercept"),
        ({"slope": 1.0}, {}, "curves.0.slope"),
        ({"space": None}, {}, "curves.0.space"),
        ({}, {"curves": 3}, "curves"),
        ({}, {"fitted_on": None}, "fitted_on"),
        ({}, {"by": "us"}, "by"),
    ],
)
def test_a_field_that_is_wrong_is_named_with_its_file(
    tmp_path: Path, curve: dict[str, Any], others: dict[str, Any], field: str
) -> None:
    path = write(tmp_path, curve, **others)

    with pytest.raises(SettingsError) as error:
        load_calibration(path)

    assert str(error.value).startswith(f"calibration_file {path}: {field}: ")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_what_is_no_calibration_at_all_is_refused_by_the_files_name(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(content)

    with pytest.raises(SettingsError, match=r"calibration_file .*calibration\.json"):
        load_calibration(path)
