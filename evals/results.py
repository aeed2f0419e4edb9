"""What a run measured: its shape, its JSON file, and its table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from evals.bootstrap import Difference, Interval, interval, paired_difference
from evals.metrics import MEASURES, Qrels, Run, score
from kb.errors import InputError, WorkError

MAIN_MEASURE = "nDCG@10"
PATHS = ("full", "rrf_only", "dense_only", "bm25_only")
_NEIGHBOURS = (("full", "rrf_only"), ("rrf_only", "dense_only"), ("rrf_only", "bm25_only"))
_DECIMALS = 6


def _rounded(value: float) -> float:
    return round(value, _DECIMALS)


def _rounded_interval(value: Interval) -> Interval:
    return Interval(_rounded(value.mean), _rounded(value.low), _rounded(value.high))


Figure = Annotated[Interval, AfterValidator(_rounded_interval)]
Value = Annotated[float, AfterValidator(_rounded)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PathResult(_Frozen):
    """What one path gave; figures are rounded to six decimals."""

    figures: dict[str, Figure]
    """By measure."""
    per_query: dict[str, dict[str, Value]]
    """By measure and query id."""
    taken: dict[str, int]
    """Queries by the path that the service named in its answer."""
    degraded: dict[str, int]
    """Queries by ``stage:reason``."""
    scored: Value
    """Candidates that the reranker scored, a query, in the mean."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.figures.keys() != self.per_query.keys() or MAIN_MEASURE not in self.figures:
            raise ValueError(
                f"figures and per_query must have the same measures, {MAIN_MEASURE} too"
            )
        return self


class Result(_Frozen):
    """What a run measured, and with what."""

    collection: str
    split: str
    queries: int
    documents: int
    rows: int
    """Sub-chunks that the documents were cut into."""
    query_locale: str
    corpus_locale: str
    unit: Literal["document", "parent"]
    """What is ranked and judged."""
    embedders: list[str]
    reranker: str | None
    settings: dict[str, Any]
    """Those that are not as shipped."""
    paths: dict[str, PathResult]


@dataclass(frozen=True, slots=True)
class Step:
    """Two paths of one result, and by how much the upper is above the lower in nDCG@10."""

    upper: str
    lower: str
    difference: Difference


def measure(qrels: Qrels, run: Run) -> tuple[dict[str, Interval], dict[str, dict[str, float]]]:
    """Give the figures of a run, and the values by query that they are the means of.

    Raises:
        InputError: nothing is judged, or a ranking names a document twice.
        WorkError: a library is missing.
    """
    per_query = score(qrels, run)
    return {name: interval(values) for name, values in per_query.items()}, per_query


def read_result(path: Path) -> Result:
    """Read a result. Raises InputError naming the file and what is wrong in it."""
    try:
        return Result.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path}: {place}: {first['msg']}") from None


def write_result(result: Result, path: Path) -> None:
    """Write a result; the same result gives the same bytes. Raises WorkError."""
    text = json.dumps(result.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise WorkError(f"{path} cannot be written ({error.strerror})") from None


def table(result: Result) -> str:
    """Give the figures as text: a line a path, and below it how the paths compare."""
    measures = measures_of(result)
    rows = [["", *measures, "taken", "reranked"]]
    for path in paths_of(result):
        found = result.paths[path]
        figures = [str(found.figures[name]) for name in measures]
        rows.append([path, *figures, counts_text(found.taken), f"{found.scored:.1f}"])
    parts = [describe(result), "Mean and 95 % interval over the queries", aligned(rows)]
    parts += [
        f"degraded on {path}: {counts_text(result.paths[path].degraded)}"
        for path in paths_of(result)
        if result.paths[path].degraded
    ]
    if steps := steps_of(result):
        compared = [[f"{MAIN_MEASURE}, paired", "difference", ""]]
        compared += [
            [f"{step.upper} - {step.lower}", str(step.difference), step.difference.verdict]
            for step in steps
        ]
        parts.append(aligned(compared))
    return "\n\n".join(parts)


def describe(result: Result) -> str:
    """Say in a line or two what was measured, and with what."""
    return (
        f"{result.collection}, {result.split}: {result.queries} queries ({result.query_locale}), "
        f"{result.documents} documents ({result.corpus_locale}) in {result.rows} rows, "
        f"by {result.unit}\n{describe_models(result)}"
    )


def describe_models(result: Result) -> str:
    """Say in a line with which models and settings."""
    settings = ", ".join(f"{name}={value}" for name, value in sorted(result.settings.items()))
    return "; ".join(
        [*result.embedders, f"reranker {result.reranker or 'none'}", settings or "as shipped"]
    )


def steps_of(result: Result, pairs: Sequence[tuple[str, str]] = _NEIGHBOURS) -> list[Step]:
    """Compare the paths of each pair that were both measured."""
    return [
        Step(upper, lower, paired_difference(_main(result, upper), _main(result, lower)))
        for upper, lower in pairs
        if {upper, lower} <= result.paths.keys()
    ]


def best_leg(result: Result) -> str | None:
    """Name the leg with the higher mean nDCG@10; None when neither was measured alone."""
    legs = [path for path in ("dense_only", "bm25_only") if path in result.paths]
    return max(legs, key=lambda leg: result.paths[leg].figures[MAIN_MEASURE].mean, default=None)


def paths_of(result: Result) -> list[str]:
    """Name the measured paths, the one with the most stages first."""
    return _in_order(result.paths, PATHS)


def measures_of(result: Result) -> list[str]:
    """Name the measures that every path has."""
    found = [set(path.figures) for path in result.paths.values()]
    return _in_order(set.intersection(*found) if found else (), MEASURES)


def counts_text(counts: Mapping[str, int]) -> str:
    """Write counts by name, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Write rows of equally many cells as text whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _main(result: Result, path: str) -> dict[str, float]:
    return result.paths[path].per_query[MAIN_MEASURE]


def _in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    return sorted(
        names, key=lambda name: (order.index(name) if name in order else len(order), name)
    )
