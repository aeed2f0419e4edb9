"""Write a generation's vectors, making anew only those that the generation before lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kb.errors import StageUnavailable, StoreError
from kb.generations import Generations, LoadedGeneration, Manifest
from kb.progress import Progress
from kb.protocols import Embedder, VectorReader, VectorWriter
from kb.types import Matrix, SubChunk, Vector, VectorSpace

_EMBED_AT_ONCE = 128
_WRITE_AT_ONCE = 1024
_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Base:
    """The generation that a new one starts from."""

    loaded: LoadedGeneration
    vectors: VectorReader

    def spaces(self) -> dict[str, VectorSpace]:
        """Give its vector spaces by name."""
        return {space.name: space for space in self.loaded.manifest.spaces}

    def passages(self, space: VectorSpace) -> dict[str, str]:
        """Map id to passage, of the rows of one space."""
        return {c.id: c.passage for c in self.loaded.chunks if space.covers(c.locale)}


@dataclass(frozen=True, slots=True)
class Written:
    """What was done in one space: the ids written, and some vectors as they were made."""

    ids: list[str] = field(default_factory=list)
    embedded: int = 0
    apart: tuple[str, ...] = ()
    """Rows of the base that the store's index did not reach."""
    samples: dict[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What has to happen in one space to get from the base's rows to the new ones."""

    space: VectorSpace
    gone: list[str]
    """Ids of the base that are no more, or mean another passage now."""
    reused: dict[str, str]
    """New id to the base's id of the same passage, where they differ or nothing was copied."""
    fresh: list[SubChunk]
    """Sub-chunks to embed."""


def build_vectors(
    generations: Generations,
    draft: LoadedGeneration,
    embedders: Sequence[Embedder],
    base: Base | None,
    progress: Progress | None,
) -> tuple[dict[str, str], dict[str, Written]]:
    """Write the vectors of a generation; give its seals, and what was written by space.

    A sub-chunk whose passage the base has in that space takes its vector over, whatever its id.

    Raises:
        ModelError: an embedder failed.
        StoreError: an embedder gave something else than vectors, or the store failed.
    """
    manifest = draft.manifest
    writer = generations.vectors.create(manifest.id, manifest.spaces, _copied_from(manifest, base))
    plans = [_plan(space, draft.chunks, base, writer.copied) for space in manifest.spaces]
    count = _Counter(sum(len(plan.fresh) for plan in plans), progress)
    written = {
        plan.space.name: _carry_out(plan, writer, embedder, base, count)
        for plan, embedder in zip(plans, embedders, strict=True)
    }
    return writer.finish(), written


def _copied_from(manifest: Manifest, base: Base | None) -> str | None:
    if base is None or base.spaces().keys().isdisjoint(space.name for space in manifest.spaces):
        return None
    return base.loaded.manifest.id


def _plan(
    space: VectorSpace, chunks: Sequence[SubChunk], base: Base | None, copied: frozenset[str]
) -> _Plan:
    wanted = {chunk.id: chunk for chunk in chunks if space.covers(chunk.locale)}
    before = base.spaces().get(space.name) if base else None
    known = base.passages(before) if base and before else {}
    id_of_passage = {passage: chunk_id for chunk_id, passage in known.items()}
    is_copied = space.name in copied
    gone, reused, fresh = list[str](), dict[str, str](), list[SubChunk]()
    if is_copied:
        gone = [i for i, text in known.items() if i not in wanted or wanted[i].passage != text]
    for chunk_id, chunk in wanted.items():
        if is_copied and known.get(chunk_id) == chunk.passage:
            continue
        if chunk.passage in id_of_passage:
            reused[chunk_id] = id_of_passage[chunk.passage]
        else:
            fresh.append(chunk)
    return _Plan(space, gone, reused, fresh)


def _carry_out(
    plan: _Plan, writer: VectorWriter, embedder: Embedder, base: Base | None, count: _Counter
) -> Written:
    space = plan.space.name
    if plan.gone:
        writer.delete(space, plan.gone)
    pairs = list(plan.reused.items())
    for start in range(0, len(pairs), _WRITE_AT_ONCE):
        part = pairs[start : start + _WRITE_AT_ONCE]
        assert base is not None  # noqa: S101  # Only what a base has is reused.
        rows = base.vectors.vectors(space, [old for _, old in part])
        writer.upsert(space, [new for new, _ in part], rows)
    samples: dict[str, Vector] = {}
    for ids, vectors in _embedded(embedder, plan.fresh):
        writer.upsert(space, ids, vectors)
        if len(samples) < _SAMPLES:
            samples |= zip(ids[:_SAMPLES], vectors, strict=False)
        count.add(len(ids))
    written = [*plan.reused, *(chunk.id for chunk in plan.fresh)]
    apart = base.loaded.manifest.apart.get(space, []) if base else []
    return Written(written, len(plan.fresh), tuple(apart), samples)


class _Counter:
    """Add up what was embedded, over all spaces."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0

    def add(self, rows: int) -> None:
        self._done += rows
        if self._progress:
            self._progress("embedding", self._done, self._total)


def _embedded(embedder: Embedder, chunks: Sequence[SubChunk]) -> Iterator[tuple[list[str], Matrix]]:
    for start in range(0, len(chunks), _EMBED_AT_ONCE):
        part = chunks[start : start + _EMBED_AT_ONCE]
        try:
            vectors = embedder.embed_passages([chunk.passage for chunk in part])
        except StageUnavailable as error:
            raise StoreError(f"cannot embed rows from {start}: {error}") from error
        expected = (len(part), embedder.fingerprint.dimension)
        if vectors.shape != expected:
            raise StoreError(f"{embedder.fingerprint} gave shape {vectors.shape}, not {expected}")
        if not np.isfinite(vectors).all():
            raise StoreError(f"{embedder.fingerprint} gave NaN or inf")
        yield [chunk.id for chunk in part], vectors
