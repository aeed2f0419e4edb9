"""Fail when a change makes answers worse: a fast subset, compared with what was kept of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from evals.bootstrap import paired_difference
from evals.collection import load_collection
from evals.evaluate import evaluate
from evals.golden import read_golden
from evals.golden_run import run_golden
from evals.results import PathResult, Result, aligned, paths_of, read_result, write_result
from evals.workbench import open_workbench
from kb.errors import InputError
from kb.progress import Progress
from serve.schemas import HybridPath
from serve.settings import Settings

BASELINE = Path(__file__).parent / "baseline"
COLLECTIONS = Path(__file__).parent / "collections"
KEPT = ("nDCG@10", "Success@1")

_SUBSET: Sequence[tuple[str, int, tuple[HybridPath, ...]]] = (
    ("faquad-pt", 150, ("rrf_only", "dense_only", "bm25_only")),
    ("tico19-es-419-to-en", 150, ("rrf_only", "dense_only")),
    ("scifact", 150, ("bm25_only",)),
)


async def measure_subset(
    settings: Settings, cache: Path, progress: Progress | None = None
) -> list[Result]:
    """Measure the golden set by every path, and a part of the other collections."""
    golden = await run_golden(read_golden(), settings, cache, progress)
    found = [run.result for run in golden]
    for name, limit, paths in _SUBSET:
        collection = load_collection(COLLECTIONS / name).limited(limit)
        words_alone = paths == ("bm25_only",)
        workbench = open_workbench(
            collection, settings, cache, progress=progress, without_vectors=words_alone
        )
        found.append(await evaluate(collection, workbench, paths, progress=progress))
    return [_kept(result) for result in found]


def keep(results: Sequence[Result], folder: Path = BASELINE) -> None:
    """Write the results as what later ones are compared with. Raises WorkError."""
    for result in results:
        write_result(result, folder / f"{result.collection}.json")


def compare_with_kept(results: Sequence[Result], folder: Path = BASELINE) -> tuple[str, int]:
    """Compare each path with what was kept; give the table, and how many are worse.

    Worse is what lies below the kept value with the whole paired interval.

    Raises:
        InputError: nothing was kept of a collection, or it was of other queries.
    """
    rows = [["collection", "path", "measure", "kept", "now", "difference", ""]]
    worse = 0
    for result in results:
        kept = read_result(folder / f"{result.collection}.json")
        for path in paths_of(kept):
            if path not in result.paths:
                raise InputError(f"{result.collection}: {path} was kept, and is not measured now")
            for measure, before in kept.paths[path].per_query.items():
                now = result.paths[path].per_query[measure]
                if now.keys() != before.keys():
                    raise InputError(
                        f"{result.collection}: its queries changed; look at the figures, and keep "
                        "them with `python -m evals gate --keep`"
                    )
                change = paired_difference(now, before)
                worse += change.verdict == "worse"
                rows.append(
                    [
                        result.collection,
                        path,
                        measure,
                        f"{_mean(before):.3f}",
                        f"{_mean(now):.3f}",
                        str(change),
                        change.verdict,
                    ]
                )
    return aligned(rows), worse


def _mean(values: dict[str, float]) -> float:
    return math.fsum(values.values()) / len(values)


def _kept(result: Result) -> Result:
    """Drop the measures that the gate does not compare: they would fill the tree."""
    paths = {
        name: PathResult(
            figures={m: path.figures[m] for m in KEPT},
            per_query={m: path.per_query[m] for m in KEPT},
            taken=path.taken,
            degraded=path.degraded,
            scored=path.scored,
        )
        for name, path in result.paths.items()
    }
    return result.model_copy(update={"paths": paths})
