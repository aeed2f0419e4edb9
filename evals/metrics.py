"""Score a run against judgments with the field's measures, as trec_eval computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kb.errors import InputError, WorkError

Run = Mapping[str, Sequence[tuple[str, float]]]
"""Document id and score by query id, best first."""

Qrels = Mapping[str, Mapping[str, int]]
"""Gain by document id, by query id; 0 is not relevant."""

MEASURES: tuple[str, ...] = (
    "nDCG@10",
    "R@10",
    "R@100",
    "RR@10",
    "P@5",
    "Success@1",
    "Judged@10",
)
"""All are of quality but the last, which says how many of the first ten were judged."""


def score(qrels: Qrels, run: Run) -> dict[str, dict[str, float]]:
    """Give the value of every measure for every judged query: measure, query id, value in 0 to 1.

    The order of a list is its ranking, whatever the scores say. A document that was not judged
    counts as not relevant, a query without results as 0, and one without judgments not at all.

    Raises:
        InputError: a ranking names a document twice.
        WorkError: ir-measures is not installed.
    """
    try:
        from ir_measures import judged, msmarco, parse_measure, pytrec_eval
        from ir_measures.providers import FallbackProvider
    except ImportError as error:
        raise WorkError(
            f"a library is missing ({error}); pip install 'adherence-retrieval[evals]'"
        ) from None
    ranked = {
        query_id: _by_rank(query_id, ranking)
        for query_id, ranking in run.items()
        if ranking and query_id in qrels
    }
    # Named, since the library's own choice depends on what else happens to be installed; the two
    # that follow give what trec_eval has not: Judged, and RR with a cutoff.
    provider = FallbackProvider([pytrec_eval, judged, msmarco])  # type: ignore[no-untyped-call]
    judgments = {query_id: dict(gains) for query_id, gains in qrels.items()}
    values: dict[str, dict[str, float]] = {
        measure: dict.fromkeys(sorted(qrels), 0.0) for measure in MEASURES
    }
    for metric in provider.iter_calc([parse_measure(name) for name in MEASURES], judgments, ranked):
        values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def _by_rank(query_id: str, ranking: Sequence[tuple[str, float]]) -> dict[str, float]:
    # trec_eval sorts again by score in single precision, and equal scores by document id.
    ranked = {document: float(-rank) for rank, (document, _) in enumerate(ranking)}
    if len(ranked) < len(ranking):
        raise InputError(f"the ranking of query {query_id!r} names a document twice")
    return ranked
