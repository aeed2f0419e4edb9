"""The served pipeline composed in one process, without Ray: for the command, evals and tests."""

from __future__ import annotations

from deployments.bm25 import Bm25Retriever
from deployments.dense import DenseRetriever
from deployments.reranker import Reranker
from kb.errors import StoreError
from kb.generations import LoadedGeneration
from kb.models import ModelStore
from kb.stores.factory import open_generations
from serve.adapters import DenseAdapter, LexicalAdapter, LocalCaller, RerankAdapter
from serve.calibration import load_calibration
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
    ensure_generation(settings)
    calibration = load_calibration(settings.calibration_file)
    stages, loaded = build_stages(settings)
    return HybridPipeline(stages, loaded, Telemetry(NoMetrics()), calibration=calibration)


def build_stages(settings: Settings) -> tuple[Stages, LoadedGeneration]:
    """Make the stages, and load the published generation. Raises WorkError when none can be."""
    bm25 = Bm25Retriever(settings.store_config(), settings.lexical_config())
    dense = DenseRetriever(
        settings.store_config(), settings.embedder_config(), settings.lexical_config()
    )
    reranker = Reranker(
        ModelStore(settings.model_home), settings.reranker_models, settings.model_threads
    )
    generations = open_generations(settings.store_config())

    def load(generation: str) -> LoadedGeneration:
        for leg in (bm25, dense):
            if problem := leg.load(generation):
                raise StoreError(problem)
        return generations.load(generation)

    _, loaded = generations.newest_sound(load)
    stages = Stages(
        LexicalAdapter(LocalCaller(bm25)),
        DenseAdapter(LocalCaller(dense)),
        RerankAdapter(LocalCaller(reranker)),
    )
    return stages, loaded
