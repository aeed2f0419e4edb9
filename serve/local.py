"""The served pipeline composed in one process, without Ray: for the command, evals and tests."""

from __future__ import annotations

from deployments.bm25 import Bm25Retriever
from deployments.dense import DenseRetriever
from deployments.reranker import Reranker
from kb.generations import load_rows
from kb.models import ModelStore
from serve.adapters import DenseAdapter, LexicalAdapter, LocalCaller, RerankAdapter
from serve.knowledge import ensure_generation
from serve.pipeline import HybridPipeline
from serve.settings import Settings
from serve.stages import Stages
from serve.telemetry import NoMetrics, Telemetry


def build_pipeline(settings: Settings) -> HybridPipeline:
    """Compose the pipeline over the published generation, ingesting first when there is none.

    Raises:
        InputError: a card is invalid.
        WorkError: the generation cannot be made or read.
    """
    generation = ensure_generation(settings)
    loaded = load_rows(settings.kb_home, generation)
    bm25 = Bm25Retriever(settings.kb_home, generation)
    dense = DenseRetriever(settings.kb_home, generation, settings.embedder_config())
    reranker = Reranker(
        ModelStore(settings.model_home), settings.reranker_models, settings.model_threads
    )
    stages = Stages(
        LexicalAdapter(LocalCaller(bm25)),
        DenseAdapter(LocalCaller(dense)),
        RerankAdapter(LocalCaller(reranker)),
    )
    return HybridPipeline(stages, loaded, Telemetry(NoMetrics()))
