"""Ask the golden set by every path, and say what refusals and probabilities come of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.evaluate import DEFAULT_PATHS, changed_settings, path_result
from evals.golden import GoldenQuery, open_golden, qrels_of, texts
from evals.refusal import Rates, curve, rates, recommend
from evals.relevance import Fit, JudgedHit, check, fit
from evals.results import PathResult, Result
from evals.run import PathRun, run_path
from evals.workbench import Workbench
from kb.chunking import MAX_TOKENS
from kb.progress import Progress
from kb.types import Locale, VectorSpace
from serve.calibration import Calibration, Curve
from serve.candidates import sigmoid
from serve.languages import detect_locale, language_of
from serve.schemas import HybridPath
from serve.settings import Settings

LOOKED_AT = 5
"""Hits of a query that a curve is fitted and checked on: what an agent reads."""


@dataclass(frozen=True)
class LocaleRun:
    """What the queries of one locale gave, path by path."""

    locale: Locale
    queries: Sequence[GoldenQuery]
    space: VectorSpace
    runs: Mapping[HybridPath, PathRun]
    result: Result

    @property
    def best_path(self) -> HybridPath:
        """The highest path that the service takes by itself in this language."""
        return "full" if self.runs["full"].taken["full"] else "rrf_only"


async def run_golden(
    queries: Sequence[GoldenQuery],
    settings: Settings,
    cache: Path,
    progress: Progress | None = None,
) -> list[LocaleRun]:
    """Ask every query by every path, with its locale named. Raises WorkError."""
    workbench = open_golden(settings, cache, progress)
    return [
        await _run_locale(locale, queries, workbench, progress)
        for locale in dict.fromkeys(query.locale for query in queries)
    ]


async def _run_locale(
    locale: Locale,
    queries: Sequence[GoldenQuery],
    workbench: Workbench,
    progress: Progress | None,
) -> LocaleRun:
    asked = [query for query in queries if query.locale == locale]
    runs: dict[HybridPath, PathRun] = {}
    results: dict[str, PathResult] = {}
    for path in DEFAULT_PATHS:
        runs[path] = await run_path(
            workbench, path, workbench.settings, texts(asked), locale, None, progress
        )
        results[path] = path_result(runs[path], qrels_of(asked))
    manifest = workbench.generation.manifest
    space = next(space for space in manifest.spaces if space.covers(locale))
    result = Result(
        collection=f"golden-{locale}",
        split="all",
        queries=len(qrels_of(asked)),
        documents=len({chunk.card_id for chunk in workbench.generation.chunks}),
        rows=sum(chunk.locale == locale for chunk in workbench.generation.chunks),
        query_locale=locale,
        corpus_locale=locale,
        unit="document",
        embedders=[str(space.fingerprint)],
        reranker=workbench.reranker.model_id if language_of(locale) == "en" else None,
        settings={**changed_settings(workbench.settings), "chunk_tokens": MAX_TOKENS},
        paths=results,
    )
    return LocaleRun(locale, asked, space, runs, result)


# Refusal


@dataclass(frozen=True, slots=True)
class RefusalReport:
    """What thresholds do in one locale by one path; chosen on one half, stated on the other."""

    locale: Locale
    path: HybridPath
    recommended: Rates | None
    """On the half that it was chosen on."""
    held_back: Rates | None
    """The same threshold on the other half."""
    shipped: Rates
    """Without a threshold, on all queries."""
    points: Sequence[Rates]
    """Over thresholds, on all queries."""


def refusals(run: LocaleRun, path: HybridPath) -> RefusalReport:
    """Sweep thresholds over the best similarity of each query's hits."""
    best = {
        query_id: max((h.similarity for h in answer.hits if h.similarity is not None), default=None)
        for query_id, answer in run.runs[path].answers.items()
    }
    found = {query_id: bool(answer.hits) for query_id, answer in run.runs[path].answers.items()}

    def of(half: bool | None, answerable: bool) -> list[float | None]:
        return [
            best[query.id]
            for query in run.queries
            if query.answerable == answerable and half in (None, query.for_tuning)
        ]

    tuned = recommend(curve(of(True, True), of(True, False)))
    held_back = rates(tuned.threshold, of(False, True), of(False, False)) if tuned else None
    answerable = [found[query.id] for query in run.queries if query.answerable]
    others = [found[query.id] for query in run.queries if not query.answerable]
    shipped = Rates(
        float("-inf"),
        1 - sum(answerable) / len(answerable),
        sum(others) / len(others) if others else 0.0,
    )
    return RefusalReport(
        run.locale, path, tuned, held_back, shipped, curve(of(None, True), of(None, False))
    )


# Relevance


@dataclass(frozen=True, slots=True)
class RelevanceReport:
    """A curve, and how it holds on the half of the queries that it was not fitted on."""

    locales: Sequence[Locale]
    path: HybridPath
    curve: Curve
    held_back: Fit


def relevances(runs: Sequence[LocaleRun]) -> list[RelevanceReport]:
    """Fit a curve for each vector space and each reranker that scored in it."""
    by_space: dict[str, list[LocaleRun]] = defaultdict(list)
    for run in runs:
        by_space[run.space.name].append(run)
    reports = []
    for space, of_space in sorted(by_space.items()):
        reports.append(_relevance(of_space, space, "rrf_only", None))
        reranked = [run for run in of_space if run.best_path == "full"]
        if reranked:
            model = reranked[0].result.reranker
            reports.append(_relevance(reranked, space, "full", model))
    return reports


def calibration_of(reports: Sequence[RelevanceReport]) -> Calibration:
    """Gather the curves for the service."""
    locales = ", ".join(dict.fromkeys(locale for report in reports for locale in report.locales))
    return Calibration(
        fitted_on=f"the golden set's tuning half ({locales}), the first {LOOKED_AT} hits of each",
        curves=tuple(report.curve for report in reports),
    )


def _relevance(
    runs: Sequence[LocaleRun], space: str, path: HybridPath, reranker: str | None
) -> RelevanceReport:
    fitted = fit(_judged(runs, path, reranker, tuning=True), space, reranker)
    others = _judged(runs, path, reranker, tuning=False)
    predicted = [
        sigmoid(
            fitted.intercept
            + fitted.similarity * hit.similarity
            + fitted.rerank * sigmoid(hit.rerank_score or 0.0)
        )
        for hit in others
    ]
    checked = check(predicted, [hit.relevant for hit in others])
    return RelevanceReport([run.locale for run in runs], path, fitted, checked)


def _judged(
    runs: Sequence[LocaleRun], path: HybridPath, reranker: str | None, *, tuning: bool
) -> list[JudgedHit]:
    found = []
    for run in runs:
        for query in run.queries:
            if query.for_tuning != tuning:
                continue
            for hit in run.runs[path].answers[query.id].hits[:LOOKED_AT]:
                score = hit.evidence.rerank_score if hit.evidence else None
                if hit.similarity is None or (reranker and score is None):
                    continue
                relevant = query.gains.get(hit.card_id, 0) > 0
                found.append(JudgedHit(hit.similarity, score, relevant))
    return found


# Languages


def detected(queries: Sequence[GoldenQuery]) -> dict[Locale, tuple[int, int]]:
    """Count, by locale, the queries whose language is guessed right, and all."""
    counts: dict[Locale, tuple[int, int]] = {}
    for query in queries:
        right, total = counts.get(query.locale, (0, 0))
        counts[query.locale] = (right + (detect_locale(query.text) == query.locale), total + 1)
    return counts
