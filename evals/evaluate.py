"""Evaluate a collection: every path, measured, with what made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from evals.collection import Collection
from evals.metrics import Qrels
from evals.results import PathResult, Result, measure
from evals.run import PathRun, run_path
from evals.workbench import NO_HURRY, Workbench
from kb.errors import InputError
from kb.progress import Progress
from kb.types import Locale
from serve.languages import match_locale
from serve.schemas import HybridPath
from serve.settings import Settings

DEFAULT_PATHS: tuple[HybridPath, ...] = ("full", "rrf_only", "dense_only", "bm25_only")

Unit = Literal["document", "parent"]

_SAID_ELSEWHERE = frozenset(
    "kb_cards kb_home model_home trace_file calibration_file ingest_on_start "
    "embedder_models".split()
)


async def evaluate(  # noqa: PLR0913  # What is measured, how, and how it is told.
    collection: Collection,
    workbench: Workbench,
    paths: Sequence[HybridPath],
    *,
    locale: str | None = None,
    unit: Unit = "document",
    progress: Progress | None = None,
) -> Result:
    """Ask a collection's queries by each path, and measure what came.

    Args:
        collection: documents, queries and judgments.
        workbench: the stages over the collection.
        paths: to measure.
        locale: named with each query, as an agent names its user's; None takes what a sample of
            the queries is in, ``detect`` leaves it to the service, query by query.
        unit: what is ranked and judged; a parent is as good as its best document.
        progress: told how far it is.

    Raises:
        InputError: the locale is none of the three.
    """
    asked_in = _locale(locale, collection)
    parents: dict[str, str] | None = None
    qrels: Qrels = collection.qrels
    if unit == "parent":
        parents = {document.id: document.parent for document in collection.documents}
        qrels = {query_id: _of_parents(gains, parents) for query_id, gains in qrels.items()}
    results: dict[str, PathResult] = {}
    for path in paths:
        run = await run_path(
            workbench,
            path,
            workbench.settings,
            collection.queries,
            asked_in,
            parents,
            progress,
            deep=True,
        )
        results[path] = path_result(run, qrels)
    return Result(
        collection=collection.name,
        split=collection.split,
        queries=len(collection.queries),
        documents=len(collection.documents),
        rows=len(workbench.generation.chunks),
        query_locale=asked_in or "detected",
        corpus_locale=collection.corpus_locale,
        unit=unit,
        embedders=embedders_of(workbench),
        reranker=workbench.reranker.model_id or None,
        settings={
            **changed_settings(workbench.settings),
            "chunk_tokens": workbench.max_tokens,
        },
        paths=results,
    )


def path_result(run: PathRun, qrels: Qrels) -> PathResult:
    """Measure what came by one path."""
    figures, per_query = measure(qrels, run.run)
    return PathResult(
        figures=figures,
        per_query=per_query,
        taken=dict(run.taken),
        degraded=dict(run.degraded),
        scored=run.scored,
    )


def embedders_of(workbench: Workbench) -> list[str]:
    """Name the embedders of a generation's vector spaces."""
    return [str(space.fingerprint) for space in workbench.generation.manifest.spaces]


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Give the settings that are not as shipped, but for places and lifted time limits."""
    shipped = Settings.model_construct().public()
    return {
        name: value
        for name, value in settings.public().items()
        if name not in _SAID_ELSEWHERE and value not in (shipped[name], NO_HURRY.get(name))
    }


def _locale(locale: str | None, collection: Collection) -> Locale | None:
    if locale is None:
        return collection.query_locale
    if locale == "detect":
        return None
    if found := match_locale(locale):
        return found
    raise InputError(f"locale {locale!r} is none of en, es-419, pt-BR, detect")


def _of_parents(gains: Mapping[str, int], parents: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for document, gain in gains.items():
        parent = parents.get(document, document)
        found[parent] = max(gain, found.get(parent, 0))
    return found
