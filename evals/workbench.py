"""Make of a collection what is served: a generation, and the stages over it, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.collection import Collection
from evals.memory import RememberedDense, RememberedLexical
from evals.pairs import CachedReranker
from evals.vectors import cached_embedders
from kb.chunking import MAX_TOKENS, split_cards
from kb.errors import InputError, StageUnavailable
from kb.generations import LoadedGeneration
from kb.ingest import ingest_chunks
from kb.progress import Progress
from kb.protocols import Embedder
from kb.stores.factory import open_generations
from kb.types import LegQuery, Locale, QueryVector, Ranking, SubChunk
from serve.languages import language_of
from serve.local import build_stages
from serve.pipeline import HybridPipeline
from serve.schemas import HybridPath
from serve.settings import Settings
from serve.stages import Stages, StageStatus
from serve.telemetry import NoMetrics, Telemetry

NO_HURRY: dict[str, Any] = {
    "leg_timeout_ms": 60_000,
    "deadline_ms": 60_000,
    "rerank_budget_ms": 60_000,
}
"""An evaluation asks how good a stage is; how much of it there is time for, benchmarks ask."""


@dataclass(frozen=True)
class Workbench:
    """The stages over one generation, which remember what they were asked."""

    stages: Stages
    reranker: CachedReranker
    generation: LoadedGeneration
    settings: Settings
    max_tokens: int
    """Of a sub-chunk, about."""

    def path(self, path: HybridPath, settings: Settings) -> tuple[HybridPipeline, Settings]:
        """Give a pipeline, and settings for it, whose requests take a path."""
        stages = self.stages
        if path == "bm25_only":
            stages = replace(stages, dense=_NoDense())
        else:
            settings = settings.model_copy(
                update={
                    "full": {},
                    "rrf_only": {"rerank_enabled": False},
                    "dense_only": {"retrieval_hybrid_enabled": False},
                }[path]
            )
        return HybridPipeline(stages, self.generation, Telemetry(NoMetrics())), settings


def open_workbench(  # noqa: PLR0913  # What, by what, and how it is kept.
    collection: Collection,
    settings: Settings,
    cache: Path,
    max_tokens: int = MAX_TOKENS,
    progress: Progress | None = None,
    *,
    without_vectors: bool = False,
) -> Workbench:
    """Ingest a collection's documents as cards, unless that was done before, and open the stages.

    Args:
        collection: its documents become cards of its corpus locale.
        settings: models and how the stages are set; places are chosen here.
        cache: where vectors, rerank scores and generations are kept between runs.
        max_tokens: of a sub-chunk, about.
        progress: told how far the ingest is.
        without_vectors: ingest for the lexical leg alone.

    Raises:
        InputError: no embedder at hand covers the queries' language.
        WorkError: the generation cannot be made.
    """
    embedders: list[Embedder] = []
    if not without_vectors:
        embedders.append(_embedder(settings, collection.query_locale, cache / "vectors"))
    kind = "words" if without_vectors else str(max_tokens)
    settings = settings.model_copy(
        update={
            "kb_home": cache / "kb" / f"{collection.name}-{kind}",
            "ingest_on_start": False,
            "embedder_models": tuple(e.fingerprint.embedder_id for e in embedders),
        }
    )
    chunks = split_cards(collection.cards(), max_tokens)
    publish(chunks, settings, embedders, progress)
    return workbench_of(settings, cache, max_tokens)


def publish(
    chunks: list[SubChunk],
    settings: Settings,
    embedders: Sequence[Embedder],
    progress: Progress | None,
) -> None:
    """Have a generation of just these sub-chunks published. Raises WorkError."""
    ingest_chunks(chunks, open_generations(settings.store_config()), embedders, (), progress, 2)


def workbench_of(settings: Settings, cache: Path, max_tokens: int = MAX_TOKENS) -> Workbench:
    """Open the stages over the generation that is published. Raises WorkError."""
    stages, generation = build_stages(settings)
    reranker = CachedReranker(stages.reranker, cache / "scores")
    stages = Stages(RememberedLexical(stages.bm25), RememberedDense(stages.dense), reranker)
    return Workbench(stages, reranker, generation, settings, max_tokens)


def _embedder(settings: Settings, locale: Locale, folder: Path) -> Embedder:
    """Give the embedder that the service would ask for queries in a locale."""
    for embedder in cached_embedders(settings.embedder_config(), folder):
        if not embedder.languages or language_of(locale) in embedder.languages:
            return embedder
    raise InputError(f"no embedder at hand covers {locale}; `make models` fetches those in the box")


class _NoDense:
    """A dense leg that is down."""

    async def search(self, query: LegQuery) -> Ranking:  # noqa: ARG002  # The protocol's.
        """Refuse."""
        raise StageUnavailable("dense", "switched_off")

    async def similarities(
        self,
        query: QueryVector,  # noqa: ARG002
        chunk_ids: Sequence[str],  # noqa: ARG002
    ) -> list[float | None]:
        """Refuse."""
        raise StageUnavailable("dense", "switched_off")

    async def load(self, generation: str) -> str:  # noqa: ARG002
        """Refuse."""
        return "switched off"

    async def status(self) -> StageStatus:
        """Say that it is off."""
        return StageStatus(ok=False, detail="switched off")
