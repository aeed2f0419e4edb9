"""Build a generation from cards and publish it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kb.cards import read_cards
from kb.chunking import split_card
from kb.errors import StageUnavailable, StoreError
from kb.generations import Generations, Manifest
from kb.protocols import Embedder
from kb.rows import encode_rows, hash_rows
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
    # By id, as every reader gives them back.
    chunks = sorted((c for card in cards for c in split_card(card)), key=lambda chunk: chunk.id)
    fingerprint = embedder.fingerprint if embedder else None
    rows = encode_rows(chunks)
    content_hash = hash_rows(rows)
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
        try:
            _build(generations, manifest, chunks, vectors)
            generations.write_rows(manifest, rows)
            generations.publish(manifest)
        except OSError as error:
            raise StoreError(
                f"{kb_home}: cannot be written: {error.strerror}; nothing is published"
            ) from error
    return IngestReport(manifest.rows, manifest.id, name, unchanged=False)


def _readable_current(generations: Generations) -> Manifest | None:
    try:
        manifest = generations.current()
        if manifest:
            generations.open_store(manifest)
            generations.read_rows(manifest)
    except StoreError:
        return None  # A broken generation is what an ingest is there to replace.
    return manifest


def _embed(embedder: Embedder, chunks: Sequence[SubChunk], progress: Progress | None) -> Matrix:
    dimension = embedder.fingerprint.dimension
    parts = [np.empty((0, dimension), dtype=np.float32)]
    for start in range(0, len(chunks), _EMBED_AT_ONCE):
        passages = [chunk.passage for chunk in chunks[start : start + _EMBED_AT_ONCE]]
        try:
            vectors = embedder.embed_passages(passages)
        except StageUnavailable as error:
            raise StoreError(f"cannot embed rows from {start}: {error}") from error
        if vectors.shape != (expected := (len(passages), dimension)):
            raise StoreError(f"{embedder.fingerprint} gave shape {vectors.shape}, not {expected}")
        parts.append(vectors)
        if progress:
            progress(start + len(passages), len(chunks))
    return np.concatenate(parts)


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
    if store.chunks() != list(chunks):
        raise StoreError("the store does not give back the rows that it was given")
