"""How a first generation comes about, and how cards become one."""

from __future__ import annotations

import os
from dataclasses import replace

from kb.cards import read_cards
from kb.chunking import split_cards
from kb.embedders.factory import choose_embedders, ids_at_hand
from kb.errors import StoreError
from kb.generations import Generations, Manifest
from kb.ingest import IngestReport, ingest
from kb.progress import Progress
from kb.rows import encode_rows, hash_rows
from kb.stores.factory import open_generations
from serve.settings import Settings


def ensure_generation(settings: Settings, progress: Progress | None = None) -> None:
    """Make a generation when there is none yet, or when an embedder has come to hand since.

    The second only while the cards are still the ones that it was made from: what somebody
    published from other cards is never replaced by itself.

    Raises:
        InputError: a card is invalid.
        WorkError: an embedder failed, or there is nothing to serve and ``ingest_on_start`` is off.
    """
    generations = open_generations(settings.store_config())
    published = generations.current_id()
    if published is None:
        if not settings.ingest_on_start:
            raise StoreError(f"{settings.kb_home}: no knowledge base yet; run `retrieval ingest`")
        ingest_cards(settings, progress)
    elif settings.ingest_on_start and _lacks_a_space(settings, generations, published):
        ingest_cards(settings, progress)


def ingest_cards(settings: Settings, progress: Progress | None = None) -> IngestReport:
    """Ingest the cards with the embedders that the settings choose. Raises as `ingest` does."""
    # Nothing is served by this process: it may have every core.
    config = replace(settings.embedder_config(), threads=os.cpu_count() or 1)
    return ingest(
        settings.kb_cards,
        open_generations(settings.store_config()),
        choose_embedders(config),
        progress,
        settings.keep_generations,
    )


def _lacks_a_space(settings: Settings, generations: Generations, published: str) -> bool:
    try:
        manifest = generations.read(published)
    except StoreError:
        return False  # The replicas fall back to the one before it, and say why.
    made_by = {space.fingerprint.embedder_id for space in manifest.spaces}
    if set(ids_at_hand(settings.embedder_config())) <= made_by:
        return False
    return _is_made_from(manifest, settings)


def _is_made_from(manifest: Manifest, settings: Settings) -> bool:
    if not settings.kb_cards.is_dir():
        return False
    chunks = split_cards(read_cards(settings.kb_cards))
    return hash_rows(encode_rows(chunks)) == manifest.content_hash
