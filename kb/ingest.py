"""Build a generation from cards and publish it."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kb.cards import read_cards
from kb.chunking import CHUNKING_VERSION, split_card
from kb.errors import StageUnavailable, StoreError
from kb.generations import Generations, Manifest
from kb.protocols import Embedder
from kb.types import Matrix, SubChunk

Progress = Callable[[int, int], None]
"""Told rows embedded so far and rows in all."""

_EMBED_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest did; ``unchanged`` when the served generation already held just that."""

    rows: int
    generation: str
    embedder: str
    unchanged: bool


def ingest(
    cards_folder: Path,
    kb_home: Path,
    embedder: Embedder | None,
    progress: Progress | None = None,
) -> IngestReport:
    """Read the cards, embed their sub-chunks, build a generation aside and publish it.

    Nothing is written before all the cards are valid; what is served stays as it is until the new
    generation is complete.

    Raises:
        InputError: a card is invalid or an id is taken twice.
        ModelError: the embedder failed.
        StoreError: another ingest runs, or the new store does not hold what was written.
    """
    cards = read_cards(cards_folder)
    chunks = [chunk for card in cards for chunk in split_card(card)]
    fingerprint = embedder.fingerprint if embedder else None
    content_hash = hash_content(chunks)
    generations = Generations(kb_home)
    with generations.lock():
        generations.discard_unfinished()
        current = _readable_current(generations)
        name = str(fingerprint) if fingerprint else "none"
        if current and (current.content_hash, current.fingerprint) == (content_hash, fingerprint):
            return IngestReport(current.rows, current.id, name, unchanged=True)
        vectors = _embed(embedder, chunks, progress) if embedder else None
        now = dt.datetime.now(dt.UTC)
        manifest = Manifest(
            id=f"{now:%Y-%m-%dT%H-%M-%S-%f}Z-{content_hash[:6]}",
            created=now.isoformat(timespec="seconds"),
            rows=len(chunks),
            content_hash=content_hash,
            fingerprint=fingerprint,
        )
        _build(generations, manifest, chunks, vectors)
        generations.publish(manifest)
    return IngestReport(manifest.rows, manifest.id, name, unchanged=False)


def hash_content(chunks: Sequence[SubChunk]) -> str:
    """Hash all that a generation is made from, embedder aside."""
    digest = hashlib.sha256(f"chunking {CHUNKING_VERSION}\n".encode())
    for chunk in chunks:
        digest.update(json.dumps(asdict(chunk), sort_keys=True).encode())
    return digest.hexdigest()


def _readable_current(generations: Generations) -> Manifest | None:
    try:
        manifest = generations.current()
        if manifest:
            generations.open_store(manifest)
    except StoreError:
        return None  # A broken generation is what an ingest is there to replace.
    return manifest


def _embed(embedder: Embedder, chunks: Sequence[SubChunk], progress: Progress | None) -> Matrix:
    parts = [np.empty((0, embedder.fingerprint.dimension), dtype=np.float32)]
    for start in range(0, len(chunks), _EMBED_AT_ONCE):
        passages = [chunk.passage for chunk in chunks[start : start + _EMBED_AT_ONCE]]
        try:
            parts.append(embedder.embed_passages(passages))
        except StageUnavailable as error:
            raise StoreError(f"cannot embed rows from {start}: {error}") from error
        if progress:
            progress(min(start + _EMBED_AT_ONCE, len(chunks)), len(chunks))
    vectors = np.concatenate(parts)
    if vectors.shape != (expected := (len(chunks), embedder.fingerprint.dimension)):
        raise StoreError(f"{embedder.fingerprint} gave shape {vectors.shape}, not {expected}")
    return vectors


def _build(
    generations: Generations,
    manifest: Manifest,
    chunks: Sequence[SubChunk],
    vectors: Matrix | None,
) -> None:
    from kb.stores.chroma import ChromaStore

    store = ChromaStore.create(generations.folder(manifest.id) / "chroma")
    store.upsert(chunks, vectors)
    if (found := store.count()) != len(chunks):
        raise StoreError(f"wrote {len(chunks)} rows, the store holds {found}; nothing is published")
