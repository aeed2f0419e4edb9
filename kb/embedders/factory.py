"""Choose the embedder: Voyage when a key is set, else a local model, else none."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb.errors import ModelError
from kb.models import ModelSpec, ModelStore, find_spec
from kb.protocols import Embedder
from kb.types import Fingerprint

logger = logging.getLogger("ray.serve.adherence_retrieval")

VOYAGE_MODEL = "voyage-3.5"
VOYAGE_KEY = "VOYAGE_API_KEY"


@dataclass(frozen=True)
class EmbedderConfig:
    """What the factory needs to know.

    The API key is not in it: a deployment's arguments are shown by the dashboard, so each process
    reads the key from its own environment.
    """

    store: ModelStore
    preference: Sequence[str]
    voyage_base_url: str | None = None
    query_timeout_s: float = 0.5
    threads: int = 1


def choose_embedder(
    config: EmbedderConfig, environ: Mapping[str, str] = os.environ
) -> Embedder | None:
    """Make the embedder that new vectors are made with.

    Raises:
        ModelError: a Voyage key is set but the client is not installed: a wrong set-up is said,
            not worked around.
    """
    if environ.get(VOYAGE_KEY):
        return make_embedder(find_spec(VOYAGE_MODEL), config, environ)
    for model_id in config.preference:
        spec = find_spec(model_id)
        if not config.store.is_present(spec):
            continue
        try:
            return make_embedder(spec, config, environ)
        except Exception as error:  # Any failure to load one model leaves the next to try.
            logger.warning("embedder %s cannot be loaded: %s", model_id, error)
    return None


def embedder_of(
    fingerprint: Fingerprint, config: EmbedderConfig, environ: Mapping[str, str] = os.environ
) -> Embedder:
    """Make the embedder that made a generation's vectors: no other may embed its queries.

    Raises:
        ModelError: it is not at hand, or what is at hand under its name makes other vectors; the
            message names both.
    """
    spec = find_spec(fingerprint.embedder_id)
    key = environ.get(VOYAGE_KEY)
    if spec.runtime == "voyage" and not key:
        raise ModelError(f"the knowledge base was embedded by {fingerprint}; set {VOYAGE_KEY}")
    if spec.runtime != "voyage" and not config.store.is_present(spec):
        present = (name for name in config.preference if config.store.is_present(find_spec(name)))
        chosen = VOYAGE_MODEL if key else next(present, "none")
        raise ModelError(
            f"the knowledge base was embedded by {fingerprint}, which is not in "
            f"{config.store.home} (embedder now configured: {chosen}); run `retrieval models pull "
            f"{spec.id}`, or `retrieval ingest` to embed it again"
        )
    embedder = make_embedder(spec, config, environ)
    if embedder.fingerprint != fingerprint:
        raise ModelError(
            f"the knowledge base was embedded by {fingerprint}, but {embedder.fingerprint} is "
            "installed; run `retrieval ingest` to embed it again"
        )
    return embedder


def make_embedder(spec: ModelSpec, config: EmbedderConfig, environ: Mapping[str, str]) -> Embedder:
    """Load one model. Raises whatever its runtime raises."""
    folder = config.store.folder(spec)
    if spec.runtime == "voyage":
        from kb.embedders.voyage import VoyageEmbedder

        return VoyageEmbedder(
            spec, environ[VOYAGE_KEY], config.voyage_base_url, config.query_timeout_s
        )
    if spec.runtime == "sentence_transformers":
        from kb.embedders.sentence_transformer import SentenceTransformerEmbedder

        return SentenceTransformerEmbedder(spec, folder, config.threads)
    from kb.embedders.onnx import OnnxEmbedder

    return OnnxEmbedder(spec, folder, config.threads)
