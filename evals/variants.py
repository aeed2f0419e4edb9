"""Compare ways of fusing and blending on one collection, against the shipped one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.bootstrap import Difference, paired_difference
from evals.collection import Collection
from evals.metrics import score
from evals.report import markdown_table
from evals.results import MAIN_MEASURE
from evals.run import run_path
from evals.workbench import Workbench
from kb.progress import Progress
from serve.schemas import HybridPath
from serve.settings import change_live

CANONICAL: Mapping[str, Any] = {"rrf_k": 60.0, "bm25_weight": 1.0}

VARIANTS: Mapping[str, tuple[HybridPath, Mapping[str, Any]]] = {
    "rrf_only as shipped": ("rrf_only", {}),
    "canonical RRF (k 60, equal weights)": ("rrf_only", CANONICAL),
    "min-max, 0.25 : 0.75": ("rrf_only", {"fusion": "min_max", "bm25_weight": 0.33}),
    "DBSF, 0.2 : 0.8": ("rrf_only", {"fusion": "dbsf", "bm25_weight": 0.25}),
    "full as shipped": ("full", {}),
    "full, canonical RRF, reranker alone": ("full", {**CANONICAL, "rerank_weight": 1.0}),
    "full, reranker alone": ("full", {"rerank_weight": 1.0}),
    "full, 5 candidates": ("full", {"reranker_max_input": 5}),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """What a variant gave, and by how much it is above the shipped settings on its path."""

    name: str
    mean: float
    gain: Difference


async def compare_variants(
    collection: Collection, workbench: Workbench, progress: Progress | None = None
) -> list[Variant]:
    """Ask the collection's queries by every variant that its language lets run."""
    shipped: dict[HybridPath, dict[str, float]] = {}
    found = []
    for done, (name, (path, changes)) in enumerate(VARIANTS.items(), 1):
        settings = change_live(workbench.settings, changes)
        run = await run_path(workbench, path, settings, collection.queries, collection.query_locale)
        if run.taken[path] == 0:
            continue
        values = score(collection.qrels, run.run)[MAIN_MEASURE]
        shipped.setdefault(path, values)
        gain = paired_difference(values, shipped[path])
        found.append(Variant(name, sum(values.values()) / len(values), gain))
        if progress:
            progress(f"{collection.name}: variants", done, len(VARIANTS))
    return found


def variants_section(found: Mapping[str, Sequence[Variant]]) -> str:
    """Write the comparison as a section of the report."""
    rows = []
    for name in VARIANTS:
        cells = [name]
        for variants in found.values():
            variant = next((v for v in variants if v.name == name), None)
            cells.append(_cell(variant) if variant else "")
        rows.append(cells)
    return f"""## Ways of fusing

{MAIN_MEASURE}, and the paired difference from the shipped settings on the same path. Weights are
those of the lexical and the dense leg. None of these collections was tuned on.

{markdown_table(["", *found], rows)}"""


def _cell(variant: Variant) -> str:
    if "as shipped" in variant.name:
        return f"{variant.mean:.3f}"
    return f"{variant.mean:.3f} ({variant.gain}, {variant.gain.verdict})"
