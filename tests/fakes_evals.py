"""Results of evaluations that never ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evals.results import PathResult, Result, measure

QUERIES = tuple(f"q{number}" for number in range(12))
QRELS = {query_id: {f"{query_id}-answer": 2, f"{query_id}-help": 1} for query_id in QUERIES}


def make_path(
    ranks: Sequence[int], path: str = "full", degraded: Mapping[str, int] | None = None
) -> PathResult:
    """Measure a path that gives each query's answer at a rank; 0 leaves it out."""
    run = {
        query_id: [
            (f"{query_id}-answer" if rank == wanted else f"other-{rank}", 0.0)
            for rank in range(1, 11)
        ]
        for query_id, wanted in zip(QUERIES, ranks, strict=True)
    }
    figures, per_query = measure(QRELS, run)
    return PathResult(
        figures=figures,
        per_query=per_query,
        taken={path: len(QUERIES)},
        degraded=dict(degraded or {}),
        scored=20.0 if path == "full" else 0.0,
    )


def make_result(paths: Mapping[str, PathResult] | None = None, **changes: Any) -> Result:
    """Give a result in which every stage earns its place."""
    values: dict[str, Any] = {
        "collection": "scifact",
        "split": "test",
        "queries": len(QUERIES),
        "documents": 24,
        "rows": 30,
        "query_locale": "en",
        "corpus_locale": "en",
        "unit": "document",
        "embedders": ["bge-small-en-v1.5 (384 dimensions, revision int8)"],
        "reranker": "ms-marco-MiniLM-L-12-v2",
        "settings": {"chunk_tokens": 80},
        "paths": paths
        or {
            "bm25_only": make_path([0] * 11 + [1], "bm25_only"),
            "dense_only": make_path([10] * 12, "dense_only"),
            "rrf_only": make_path([3] * 12, "rrf_only"),
            "full": make_path([1] * 12),
        },
    }
    return Result(**values | changes)
