"""Try settings on tuning splits, and say which gain more than chance would."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.bootstrap import Difference, paired_difference
from evals.collection import Split, load_collection
from evals.golden import open_golden, qrels_of, read_golden, texts
from evals.metrics import score
from evals.run import run_path
from evals.workbench import Workbench, open_workbench
from kb.errors import InputError
from kb.progress import Progress
from kb.types import Locale
from serve.languages import match_locale
from serve.schemas import HybridPath
from serve.settings import Settings, change_live

MEASURE = "nDCG@10"
TUNING_SPLITS: Mapping[str, Split] = {
    "train": "train",
    "tuning-half": "tuning-half",
}
"""What is reported is in none of them."""


@dataclass(frozen=True)
class TuningSet:
    """Queries that may be tuned on, and the stages that answer them."""

    name: str
    workbench: Workbench
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    locale: Locale


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried, and what each query of each set got."""

    changes: Mapping[str, str]
    values: Mapping[str, Mapping[str, float]]

    @property
    def mean(self) -> float:
        """Average over the sets, each counting the same."""
        return statistics.fmean(
            statistics.fmean(values.values()) for values in self.values.values()
        )


def grid(parameters: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Give every combination of the values, in order.

    >>> list(grid({"rrf_k": ["10", "60"], "bm25_weight": ["0.5"]}))
    [{'rrf_k': '10', 'bm25_weight': '0.5'}, {'rrf_k': '60', 'bm25_weight': '0.5'}]
    """
    for values in itertools.product(*parameters.values()):
        yield dict(zip(parameters, values, strict=True))


def tuning_set(
    name: str, settings: Settings, cache: Path, limit: int | None, progress: Progress | None
) -> TuningSet:
    """Open what a name stands for: ``DIR:SPLIT``, or ``golden:LOCALE``, its tuning half.

    Raises:
        InputError: there is no such collection or locale, or the split is what is reported.
    """
    folder, _, split = name.rpartition(":")
    if folder == "golden":
        return _golden(match_locale(split), settings, cache, progress)
    if split not in TUNING_SPLITS:
        raise InputError(f"{name}: name one of the splits {', '.join(TUNING_SPLITS)} to tune on")
    collection = load_collection(Path(folder), TUNING_SPLITS[split]).limited(limit)
    workbench = open_workbench(collection, settings, cache, progress=progress)
    return TuningSet(
        f"{collection.name}:{split}",
        workbench,
        collection.queries,
        collection.qrels,
        collection.query_locale,
    )


def _golden(
    locale: Locale | None, settings: Settings, cache: Path, progress: Progress | None
) -> TuningSet:
    if locale is None:
        raise InputError("golden: name en, es-419 or pt-BR behind the colon")
    queries = [q for q in read_golden(locales=(locale,)) if q.for_tuning and q.answerable]
    workbench = open_golden(settings, cache, progress)
    return TuningSet(f"golden-{locale}", workbench, texts(queries), qrels_of(queries), locale)


async def tune(
    sets: Sequence[TuningSet],
    parameters: Mapping[str, Sequence[str]],
    path: HybridPath,
    progress: Progress | None = None,
) -> list[Trial]:
    """Ask every query under every combination of settings; the first trial is as it was set.

    The legs and the reranker are asked once: what they answer is remembered.

    Args:
        sets: what to tune on.
        parameters: values to try, by setting; each must be one that can change live.
        path: which path's result counts.
        progress: told how many combinations are done.

    Raises:
        InputError: a setting is unknown or cannot take a value.
    """
    if not sets:
        raise InputError("name at least one collection to tune on")
    combinations = [{}, *(grid(parameters) if parameters else ())]
    trials = []
    for done, changes in enumerate(combinations, 1):
        values = {tuning.name: await _values(tuning, changes, path) for tuning in sets}
        trials.append(Trial(changes, values))
        if progress:
            progress("tuning", done, len(combinations))
    return trials


async def _values(
    tuning: TuningSet, changes: Mapping[str, str], path: HybridPath
) -> dict[str, float]:
    settings: Settings = change_live(tuning.workbench.settings, changes)
    run = await run_path(tuning.workbench, path, settings, tuning.queries, tuning.locale)
    return score(tuning.qrels, run.run)[MEASURE]


def summary(trials: Sequence[Trial]) -> str:
    """Write the trials, best first, each set's gain over the first trial with its interval.

    A gain counts only where its interval lies above nought.
    """
    shipped = trials[0]
    names = list(shipped.values)
    lines = [f"{'mean':>7}  " + "  ".join(f"{name:>34}" for name in names) + "  settings"]
    order = sorted(trials, key=lambda trial: (-trial.mean, tuple(sorted(trial.changes.items()))))
    for trial in order:
        cells = []
        for name in names:
            gain = paired_difference(trial.values[name], shipped.values[name])
            mean = statistics.fmean(trial.values[name].values())
            cells.append(f"{mean:.4f} {_gain(gain):>27}")
        changed = " ".join(f"{name}={value}" for name, value in trial.changes.items())
        lines.append(f"{trial.mean:7.4f}  " + "  ".join(cells) + f"  {changed or '(as set)'}")
    return "\n".join(lines)


def _gain(gain: Difference) -> str:
    mark = {"better": "+", "worse": "-", "alike": " "}[gain.verdict]
    return f"{gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] {mark}"
