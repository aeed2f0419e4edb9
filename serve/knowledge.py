"""Which generation is served, and how a first one comes about."""

from __future__ import annotations

from kb.embedders.factory import choose_embedder
from kb.errors import StoreError
from kb.generations import Generations
from kb.ingest import IngestReport, Progress, ingest
from serve.settings import Settings


def ensure_generation(settings: Settings) -> str:
    """Give the id of the generation to serve, and make it when there is none yet.

    One that was made without an embedder is made again: there may be one now.

    Raises:
        InputError: a card is invalid.
        WorkError: the embedder failed, or there is nothing to serve and ``ingest_on_start`` is off.
    """
    manifest = Generations(settings.kb_home).current()
    if manifest and (manifest.fingerprint or not settings.ingest_on_start):
        return manifest.id
    if not settings.ingest_on_start:
        raise StoreError(f"{settings.kb_home}: no knowledge base yet; run `retrieval ingest`")
    return ingest_cards(settings).generation


def ingest_cards(settings: Settings, progress: Progress | None = None) -> IngestReport:
    """Ingest the cards with the embedder that the settings choose. Raises as `ingest` does."""
    embedder = choose_embedder(settings.embedder_config())
    return ingest(settings.kb_cards, settings.kb_home, embedder, progress)
