"""Write what the golden set showed, as sections of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evals.bootstrap import interval
from evals.golden import GoldenQuery
from evals.golden_run import LocaleRun, RefusalReport, RelevanceReport, refusals
from evals.report import markdown_table
from evals.results import describe_models, paths_of, steps_of
from kb.types import Locale
from serve.schemas import HybridPath

_MEASURES = ("Success@1", "nDCG@10", "RR@10")
_STEP_SHOWN = 5


def golden_sections(
    runs: Sequence[LocaleRun],
    relevance: Sequence[RelevanceReport],
    languages: Mapping[Locale, tuple[int, int]],
) -> list[str]:
    """Give the sections: answers, refusals, probabilities, languages."""
    return [
        _answers(runs),
        _refusal([refusals(run, path) for run in runs for path in _paths_with_similarity(run)]),
        _relevance(relevance),
        _languages(languages),
    ]


def _paths_with_similarity(run: LocaleRun) -> list[HybridPath]:
    return ["full", "dense_only"] if run.best_path == "full" else ["rrf_only", "dense_only"]


def _answers(runs: Sequence[LocaleRun]) -> str:
    rows = [
        [
            run.locale,
            path + (" (best)" if path == run.best_path else ""),
            *(str(run.result.paths[path].figures[name]) for name in _MEASURES),
            str(interval(_half(run, path, run.queries))),
        ]
        for run in runs
        for path in paths_of(run.result)
        if path != "full" or run.best_path == "full"
    ]
    kinds = list(dict.fromkeys(q.kind for run in runs for q in run.queries if q.answerable))
    of_kind = [[run.locale, *(_hits_of_kind(run, kind) for kind in kinds)] for run in runs]
    steps = [
        [run.locale, f"{s.upper} − {s.lower}", str(s.difference), s.difference.verdict]
        for run in runs
        for s in steps_of(run.result)
        if s.upper in {run.best_path, "rrf_only"}
    ]
    models = "\n".join(f"- {run.locale}: {describe_models(run.result)}" for run in runs)
    counts = ", ".join(
        f"{run.locale} {sum(q.answerable for q in run.queries)} and "
        f"{sum(not q.answerable for q in run.queries)}"
        for run in runs
    )
    return f"""## The golden set

What patients ask, in their words, over the shipped cards (`evals/golden/`): with and without an
answer, {counts}. Success@1 is the share of answerable queries whose first card helps. The queries
about one card are all in one half: fusion, thresholds and curves were chosen on the tuning half
(with the other collections' tuning splits), and the last column is the half that was held back.

{models}

{markdown_table(["Locale", "Path", *_MEASURES, "Success@1, held back"], rows)}

Success@1 of the best path by kind of query:

{markdown_table(["Locale", *kinds], of_kind)}

{markdown_table(["Locale", "Paths", "nDCG@10, difference", "Upper is"], steps)}"""


def _half(run: LocaleRun, path: str, queries: Sequence[GoldenQuery]) -> dict[str, float]:
    values = run.result.paths[path].per_query["Success@1"]
    return {q.id: values[q.id] for q in queries if q.answerable and not q.for_tuning}


def _hits_of_kind(run: LocaleRun, kind: str) -> str:
    values = run.result.paths[run.best_path].per_query["Success@1"]
    of_kind = [values[query.id] for query in run.queries if query.kind == kind]
    return f"{sum(of_kind):.0f} of {len(of_kind)}" if of_kind else "none"


def _refusal(reports: Sequence[RefusalReport]) -> str:
    rows = []
    for report in reports:
        chosen, held = report.recommended, report.held_back
        rows.append(
            [
                report.locale,
                report.path,
                f"{report.shipped.false_refusals:.1%}",
                f"{chosen.threshold:.2f}" if chosen else "none",
                f"{held.false_refusals:.1%}" if held else "",
                f"{held.false_answers:.1%}" if held else "",
            ]
        )
    sweeps = "\n\n".join(_sweep(report) for report in reports if report.path != "dense_only")
    return f"""## Refusal

`min_similarity` ships off. The recommended value is the highest that wrongly refuses at most 1 % of
the answerable queries of the tuning half; its rates are those of the half that was held back. It
belongs to its embedder: another one's cosines mean something else.

{
        markdown_table(
            [
                "Locale",
                "Path",
                "False refusals as shipped",
                "Recommended min_similarity",
                "False refusals with it",
                "False answers with it",
            ],
            rows,
        )
    }

{sweeps}"""


def _sweep(report: RefusalReport) -> str:
    shown = [p for p in report.points if round(p.threshold * 100) % _STEP_SHOWN == 0]
    heads = ["min_similarity", *(f"{point.threshold:.2f}" for point in shown)]
    refused = ["false refusals", *(f"{point.false_refusals:.0%}" for point in shown)]
    answered = ["false answers", *(f"{point.false_answers:.0%}" for point in shown)]
    table = markdown_table(heads, [refused, answered])
    return f"{report.locale}, {report.path}, all queries:\n\n{table}"


def _relevance(reports: Sequence[RelevanceReport]) -> str:
    rows = [
        [
            report.curve.space,
            report.curve.reranker or "none",
            ", ".join(report.locales),
            f"{report.held_back.hits} ({report.held_back.relevant} relevant)",
            f"{report.held_back.auc:.3f}",
            f"{report.held_back.brier:.3f} (base {report.held_back.base_brier:.3f})",
            f"{report.held_back.calibration_error:.3f}",
        ]
        for report in reports
    ]
    heads = ["Space", "Reranker", "Locales", "Hits, held back", "AUC", "Brier", "Calibration error"]
    return f"""## Relevance

With `explain`, each hit carries the probability that its card helps, from logistic curves in
`serve/calibration.json`; fitted on the tuning half, checked on the other.

{markdown_table(heads, rows)}"""


def _languages(languages: Mapping[Locale, tuple[int, int]]) -> str:
    rows = [
        [locale, f"{right} of {total}", f"{right / total:.1%}"]
        for locale, (right, total) in languages.items()
    ]
    return f"""## Language detection

Of the golden set's queries, without a locale named:

{markdown_table(["Locale", "Detected right", "Share"], rows)}"""
