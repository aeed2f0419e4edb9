"""The composition root: settings in, a Ray Serve application out."""

# No `from __future__ import annotations` here: it turns the builder's annotation into text, and Ray
# then hands over the raw dict without checking it against Settings.

from ray import serve
from ray.serve import Application, Deployment

from deployments.bm25 import Bm25Retriever
from deployments.dense import DenseRetriever
from deployments.reranker import Reranker
from kb.models import ModelStore
from serve.ingress import Ingress
from serve.knowledge import ensure_generation
from serve.progress_bar import Bar
from serve.settings import Settings, load_settings


def build_app(args: Settings) -> Application:
    """Bind the four deployments. Replicas, CPU shares and queues are ``serve_config.yaml``'s.

    Ingests first when there is no knowledge base yet.

    Raises:
        InputError: a setting or a card is wrong.
        WorkError: the generation cannot be made.
    """
    settings = load_settings(args.model_dump(exclude_unset=True))
    ensure_generation(settings, Bar())
    bm25 = _deployment(Bm25Retriever).bind(settings.store_config(), settings.lexical_config())
    dense = _deployment(DenseRetriever).bind(
        settings.store_config(), settings.embedder_config(), settings.lexical_config()
    )
    reranker = _deployment(Reranker).bind(
        ModelStore(settings.model_home), settings.reranker_models, settings.model_threads
    )
    return _deployment(Ingress).bind(settings, bm25, dense, reranker)


def _deployment(cls: type) -> Deployment:
    """Name a deployment after its class, as ``serve_config.yaml`` does."""
    return serve.deployment(name=cls.__name__)(cls)
