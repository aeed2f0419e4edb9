"""Score each pair of query and passage once in the life of a cache."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kb.errors import StageUnavailable
from kb.types import RerankScores
from serve.stages import RerankStage, StageStatus


class CachedReranker:
    """Keep rerank scores by model, query and passage in a SQLite file.

    What the model refuses, a language that it does not cover say, it goes on refusing.

    Args:
        reranker: scores what the cache lacks, several passages at once.
        folder: where the files lie, one a model.
    """

    model_id = ""
    """Known after the first scores."""

    def __init__(self, reranker: RerankStage, folder: Path) -> None:
        self._reranker = reranker
        self._folder = folder
        self._free = asyncio.Semaphore(os.cpu_count() or 1)

    async def rerank(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        """Score every passage, whatever the time is. Raises StageUnavailable as the model does."""
        if not self.model_id:
            self.model_id = (await self._score(query, passages[:1], language, deadline)).model_id
        keys = [_key(language, query, passage) for passage in passages]
        with closing(self._open()) as cache:
            marks = ",".join("?" * len(keys))
            known = dict(
                cache.execute(
                    f"SELECT key, score FROM scores WHERE key IN ({marks})",  # noqa: S608
                    keys,
                )
            )
            missing = [n for n, key in enumerate(keys) if key not in known]
            if missing:
                texts = [passages[n] for n in missing]
                found = await self._score(query, texts, language, deadline)
                made = dict(zip((keys[n] for n in missing), found.scores, strict=True))
                with cache:
                    cache.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", made.items())
                known |= made
        return RerankScores(tuple(known[key] for key in keys), self.model_id, complete=True)

    async def status(self) -> StageStatus:
        """Say how the reranker is."""
        return await self._reranker.status()

    async def _score(
        self, query: str, passages: Sequence[str], language: str, deadline: float
    ) -> RerankScores:
        async with self._free:
            found = await self._reranker.rerank(query, passages, language, deadline)
        if not found.complete:
            raise StageUnavailable("rerank", "deadline")
        return found

    def _open(self) -> sqlite3.Connection:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = self.model_id.replace("/", "--")
        cache = sqlite3.connect(self._folder / f"{name}.sqlite", timeout=60)
        cache.execute(
            "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score REAL NOT NULL)"
        )
        return cache


def _key(language: str, query: str, passage: str) -> bytes:
    return hashlib.sha256(f"{language}\0{query}\0{passage}".encode()).digest()
