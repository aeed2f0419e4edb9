"""Compare two runs of one collection, query by query."""

from __future__ import annotations

from typing import Any

from evals.bootstrap import paired_difference
from evals.results import Result, aligned, measures_of, paths_of
from kb.errors import InputError

_SAME = ("collection", "split", "queries", "documents", "unit")
_NO_QUALITY = "Judged@10"
_AS_SHIPPED = "as shipped"


def compare(a: Result, b: Result) -> str:
    """Write what differs between two runs: settings, and each measure of each common path.

    A verdict is about b: ``better`` and ``worse`` where the interval of b - a leaves out 0.

    Raises:
        InputError: they are not of the same queries and documents, or share no path.
    """
    for field in _SAME:
        if (was := getattr(a, field)) != (now := getattr(b, field)):
            raise InputError(f"the runs cannot be compared: {field} is {was} in a and {now} in b")
    paths = [path for path in paths_of(a) if path in b.paths]
    if not paths:
        raise InputError("the runs cannot be compared: they have no path in common")
    rows = [["path", "measure", "a", "b", "b - a", "verdict on b"]]
    for path in paths:
        was, now = a.paths[path], b.paths[path]
        for measure in [name for name in measures_of(a) if name in now.figures]:
            change = paired_difference(now.per_query[measure], was.per_query[measure])
            rows.append(
                [
                    path,
                    measure,
                    f"{was.figures[measure].mean:.3f}",
                    f"{now.figures[measure].mean:.3f}",
                    str(change),
                    "" if measure == _NO_QUALITY else change.verdict,
                ]
            )
    heading = f"{a.collection}, {a.split}: {a.queries} queries, by {a.unit}; paired, 95 % interval"
    return "\n\n".join([heading, _settings(a, b), aligned(rows)])


def _settings(a: Result, b: Result) -> str:
    was, now = _made_with(a), _made_with(b)
    rows = [
        [name, str(was.get(name, _AS_SHIPPED)), str(now.get(name, _AS_SHIPPED))]
        for name in sorted(was.keys() | now.keys())
        if was.get(name, _AS_SHIPPED) != now.get(name, _AS_SHIPPED)
    ]
    return aligned([["setting", "a", "b"], *rows]) if rows else "The settings are the same."


def _made_with(result: Result) -> dict[str, Any]:
    return {
        **result.settings,
        "rows": result.rows,
        "embedders": ", ".join(result.embedders),
        "reranker": result.reranker or "none",
        "query_locale": result.query_locale,
        "corpus_locale": result.corpus_locale,
    }
