"""Build a generation from cards, check it, and publish it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kb.build import Base, build_vectors
from kb.canaries import Canary, read_canaries
from kb.cards import read_cards
from kb.checks import check_canaries, check_rows
from kb.chunking import split_cards
from kb.errors import StoreError
from kb.generations import Generations, LoadedGeneration, Manifest
from kb.progress import Progress
from kb.protocols import Embedder
from kb.rows import encode_rows, hash_rows
from kb.types import SubChunk, VectorSpace

KEPT = 3


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest did; ``unchanged`` when a generation already held just that.

    ``embedded`` counts the vectors that an embedder had to make; the others were taken over from
    the generation before.
    """

    rows: int
    generation: str
    embedders: str
    embedded: int
    unchanged: bool


def ingest(
    cards_folder: Path,
    generations: Generations,
    embedders: Sequence[Embedder],
    progress: Progress | None = None,
    keep: int = KEPT,
) -> IngestReport:
    """Read the cards, embed what is new, build a generation aside, check and publish it.

    Nothing is written before all the cards are valid; what is served stays as it is until the new
    generation is complete and has passed its checks.

    Args:
        cards_folder: the cards, and ``canaries.yaml`` beside them where there is one.
        generations: the knowledge base.
        embedders: one a vector space, by preference; none makes a generation that only words find.
        progress: told how many rows are embedded.
        keep: generations to keep, the new one included.

    Raises:
        InputError: a card or a canary is invalid, or an id is taken twice.
        ModelError: an embedder failed.
        StoreError: another ingest runs, or the generation did not pass its checks.
    """
    cards = read_cards(cards_folder)
    canaries = read_canaries(cards_folder, {card.id for card in cards})
    return ingest_chunks(split_cards(cards), generations, embedders, canaries, progress, keep)


def ingest_chunks(  # noqa: PLR0913, PLR0917  # What `ingest` is given, with rows for a folder.
    chunks: list[SubChunk],
    generations: Generations,
    embedders: Sequence[Embedder],
    canaries: Sequence[Canary] = (),
    progress: Progress | None = None,
    keep: int = KEPT,
) -> IngestReport:
    """Build, check and publish a generation of sub-chunks, ordered by id. Raises as `ingest`."""
    draft = _draft(chunks, embedders)
    with generations.lock():
        generations.discard_unfinished()
        base = _open_base(generations)
        try:
            found = _already_built(generations, base, draft.manifest)
            if found:
                _check_canaries(generations, replace(draft, manifest=found), embedders, canaries)
                embedded = 0
            else:
                found, embedded = _build(generations, draft, embedders, base, canaries, progress)
        finally:
            if base:
                base.vectors.close()
        if found.id != _published(generations):
            generations.switch_to(found)
        generations.prune(keep)
    unchanged = found.id != draft.manifest.id
    return IngestReport(found.rows, found.id, found.embedders, embedded, unchanged)


def _draft(chunks: list[SubChunk], embedders: Sequence[Embedder]) -> LoadedGeneration:
    content_hash = hash_rows(encode_rows(chunks))
    now = dt.datetime.now(dt.UTC)
    manifest = Manifest(
        id=f"{now:%Y-%m-%dT%H-%M-%S-%f}Z-{content_hash[:6]}",
        created=now.isoformat(timespec="seconds"),
        rows=len(chunks),
        content_hash=content_hash,
        spaces=tuple(_space(embedder, chunks) for embedder in embedders),
    )
    return LoadedGeneration(manifest, tuple(chunks))


def _space(embedder: Embedder, chunks: Sequence[SubChunk]) -> VectorSpace:
    space = VectorSpace(embedder.fingerprint, tuple(sorted(embedder.languages)), 0)
    return replace(space, rows=sum(space.covers(chunk.locale) for chunk in chunks))


def _open_base(generations: Generations) -> Base | None:
    """Open the newest sound generation; a broken one is what an ingest is there to replace."""

    def load(generation_id: str) -> Base:
        loaded = generations.load(generation_id)
        return Base(loaded, generations.open_vectors(loaded.manifest, thorough=True))

    try:
        return generations.newest_sound(load)[1]
    except StoreError:
        return None


def _already_built(
    generations: Generations, base: Base | None, wanted: Manifest
) -> Manifest | None:
    """Find a sound generation that holds just what is wanted.

    One that is newer than the published one is there after a rollback, or when an ingest was
    killed in the moment before publishing.
    """
    published = _published(generations)
    for generation_id in reversed(generations.ids()):
        if generation_id <= published:
            break
        try:
            newer = generations.verify(generation_id)
        except StoreError:
            continue
        if _holds_the_same(newer, wanted):
            return newer
    if base and _holds_the_same(base.loaded.manifest, wanted):
        return base.loaded.manifest
    return None


def _published(generations: Generations) -> str:
    """Name the published generation; nothing when there is none or the pointer is damaged."""
    try:
        return generations.current_id() or ""
    except StoreError:
        return ""


def _holds_the_same(one: Manifest, other: Manifest) -> bool:
    return (one.content_hash, one.spaces) == (other.content_hash, other.spaces)


def _build(  # noqa: PLR0913, PLR0917  # What is there, what is wanted, and with what.
    generations: Generations,
    draft: LoadedGeneration,
    embedders: Sequence[Embedder],
    base: Base | None,
    canaries: Sequence[Canary],
    progress: Progress | None,
) -> tuple[Manifest, int]:
    """Build, check and finish a generation; nothing of it is left when that fails."""
    try:
        seals, written = build_vectors(generations, draft, embedders, base, progress)
        manifest = replace(draft.manifest, seals=seals)
        reader = generations.open_vectors(manifest)
        try:
            found = {
                space.name: check_rows(reader, space, draft.chunks, written[space.name], progress)
                for space in manifest.spaces
            }
        finally:
            reader.close()
        apart = {name: list(ids) for name, ids in found.items() if ids}
        manifest = replace(manifest, apart=apart)
        draft = replace(draft, manifest=manifest)
        _check_canaries(generations, draft, embedders, canaries)
        generations.finish(manifest, encode_rows(draft.chunks))
    except BaseException:
        generations.drop(draft.manifest.id)
        raise
    return manifest, sum(space.embedded for space in written.values())


def _check_canaries(
    generations: Generations,
    draft: LoadedGeneration,
    embedders: Sequence[Embedder],
    canaries: Sequence[Canary],
) -> None:
    if not canaries:
        return
    reader = generations.open_vectors(draft.manifest)
    try:
        for space, embedder in zip(draft.manifest.spaces, embedders, strict=True):
            check_canaries(reader, space, draft.chunks, embedder, canaries)
    finally:
        reader.close()
