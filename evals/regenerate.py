"""Measure everything that the documentation states, and write it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evals.collection import Collection, load_collection
from evals.evaluate import DEFAULT_PATHS, evaluate
from evals.gate import COLLECTIONS
from evals.golden import read_golden
from evals.golden_report import golden_sections
from evals.golden_run import detected, relevances, run_golden
from evals.report import markdown_table, write_report
from evals.results import Result, write_result
from evals.variants import Variant, compare_variants, variants_section
from evals.workbench import open_workbench
from kb.progress import Progress
from serve.languages import language_of
from serve.schemas import HybridPath
from serve.settings import Settings

LIVEQA = "liveqa-med-free"
WHOLE = 512
"""Tokens of a sub-chunk: more than the abstracts have, and what the models read at most."""
PUBLISHED_BM25: dict[str, Any] = {"analyzer": "published", "bm25_k1": 0.9, "bm25_b": 0.4}


async def regenerate(
    settings: Settings, cache: Path, docs: Path, data: Path | None, progress: Progress | None = None
) -> None:
    """Measure every collection and the golden set, and write ``quality.md`` and its picture.

    Args:
        settings: as shipped, time limits aside.
        cache: where vectors, scores and generations are kept between runs.
        docs: where the report goes.
        data: a folder that holds ``liveqa-med-free``, which is not in this tree; without it that
            collection is left out.
        progress: told how far it is.

    Raises:
        InputError: a collection is not what it should be.
        WorkError: something cannot be made or written.
    """
    results: list[Result] = []
    variants: dict[str, list[Variant]] = {}
    for collection in _collections(data):
        workbench = open_workbench(collection, settings, cache, progress=progress)
        paths = [path for path in DEFAULT_PATHS if path != "full" or _reranked(collection)]
        results.append(await evaluate(collection, workbench, paths, progress=progress))
        variants[collection.name] = await compare_variants(collection, workbench, progress)
    golden = await run_golden(read_golden(), settings, cache, progress)
    sections = [
        variants_section(variants),
        await _anchors(settings, cache, progress),
        *golden_sections(golden, relevances(golden), detected(read_golden())),
    ]
    for result in [*results, *(run.result for run in golden)]:
        write_result(result, cache / "results" / f"{result.collection}.json")
    write_report(results, sections, docs)


def _collections(data: Path | None) -> Iterator[Collection]:
    yield load_collection(COLLECTIONS / "scifact")
    if data:
        yield load_collection(data / LIVEQA, "reporting-half")
    for name in ("faquad-pt", "tico19-es-419-to-en", "tico19-pt-br-to-en"):
        yield load_collection(COLLECTIONS / name)


def _reranked(collection: Collection) -> bool:
    return language_of(collection.query_locale) == "en"


async def _anchors(settings: Settings, cache: Path, progress: Progress | None) -> str:
    """Measure what others published, as they measured it: whole abstracts."""
    collection = load_collection(COLLECTIONS / "scifact")
    as_published = settings.model_copy(update=PUBLISHED_BM25)
    workbench = open_workbench(collection, as_published, cache, WHOLE, progress)
    paths: tuple[HybridPath, ...] = ("dense_only", "bm25_only")
    result = await evaluate(collection, workbench, paths, progress=progress)
    published = {
        "bm25_only": "0.665 (BEIR, Thakur et al. 2021) to 0.679 (Pyserini, flat index)",
        "dense_only": "0.713 (bge-small-en-v1.5, fp32, MTEB)",
    }
    rows = [[path, str(result.paths[path].figures["nDCG@10"]), published[path]] for path in paths]
    return f"""## Anchors

SciFact's test queries over whole abstracts, BM25 with the published analyser, k1 0.9 and b 0.4
(rank-bm25's idf), bge-small-en-v1.5 as int8, both cut at 512 tokens.

{markdown_table(["Path", "nDCG@10 here", "Published"], rows)}"""
