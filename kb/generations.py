"""Immutable versions of the knowledge base, and the one pointer that says which is served.

KB_HOME/
  CURRENT                    the id of the published generation, replaced atomically
  ingest.lock                held while one is being built
  generations/<id>/
    chroma/                  the store: rows and vectors
    rows.jsonl               the rows again, for those who need no vectors
    manifest.json            written last: a generation without it was never finished
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from kb.errors import StoreError
from kb.protocols import VectorStore
from kb.rows import decode_rows, hash_rows
from kb.types import Fingerprint, SubChunk

_KEPT = 3


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a generation holds. ``fingerprint`` is None when it has no vector space."""

    id: str
    created: str
    rows: int
    content_hash: str
    fingerprint: Fingerprint | None


class Generations:
    """The generations under one ``KB_HOME``."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def folder(self, generation_id: str) -> Path:
        """Say where a generation lies."""
        return self.home / "generations" / generation_id

    def current(self) -> Manifest | None:
        """Read the published generation's manifest; None when nothing was ever published.

        Raises:
            StoreError: the pointer names a generation that is not there or not readable.
        """
        path = self.home / "CURRENT"
        try:
            generation_id = path.read_text("utf-8").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(
                f"{path}: cannot be read ({type(error).__name__}); run `retrieval ingest`"
            ) from error
        if not generation_id:
            raise StoreError(f"{path}: names no generation; run `retrieval ingest`")
        return self.read(generation_id)

    def read(self, generation_id: str) -> Manifest:
        """Read a generation's manifest. Raises StoreError."""
        path = self.folder(generation_id) / "manifest.json"
        try:
            data = json.loads(path.read_text("utf-8"))
            made_by = data.pop("fingerprint")
            return Manifest(**data, fingerprint=Fingerprint(**made_by) if made_by else None)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"{path}: cannot be read ({type(error).__name__}); run `retrieval ingest`"
            ) from error

    def open_store(self, manifest: Manifest) -> VectorStore:
        """Open a generation's store for reading. Raises StoreError when it does not fit."""
        from kb.stores.chroma import ChromaStore

        store = ChromaStore.open(self.folder(manifest.id) / "chroma")
        if (found := store.count()) != manifest.rows:
            raise StoreError(
                f"generation {manifest.id} holds {found} rows, its manifest says {manifest.rows}; "
                "run `retrieval ingest`"
            )
        return store

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the right to build. Raises StoreError at once when another process has it."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.home}: cannot be made a folder: {error.strerror}") from None
        lock = FileLock(self.home / "ingest.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise StoreError(f"{self.home}: another ingest is running; wait for it") from None
        try:
            yield
        finally:
            lock.release()

    def write_rows(self, manifest: Manifest, rows: bytes) -> None:
        """Keep a generation's rows beside its store."""
        _write_atomically(self.folder(manifest.id) / "rows.jsonl", rows)

    def read_rows(self, manifest: Manifest) -> tuple[SubChunk, ...]:
        """Read a generation's rows. Raises StoreError when they are not what was published."""
        path = self.folder(manifest.id) / "rows.jsonl"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
        if hash_rows(data) != manifest.content_hash:
            raise StoreError(f"{path}: is damaged; run `retrieval ingest` to build it again")
        return decode_rows(data)

    def publish(self, manifest: Manifest) -> None:
        """Finish a generation and make it the current one; the switch is one atomic rename."""
        path = self.folder(manifest.id) / "manifest.json"
        _write_atomically(path, json.dumps(asdict(manifest), indent=2).encode() + b"\n")
        _write_atomically(self.home / "CURRENT", manifest.id.encode() + b"\n")
        self._prune(manifest.id)

    def discard_unfinished(self) -> None:
        """Delete what a crashed ingest left. Call it with the lock held."""
        for folder in (self.home / "generations").glob("*"):
            if not (folder / "manifest.json").is_file():
                shutil.rmtree(folder, ignore_errors=True)

    def _prune(self, current_id: str) -> None:
        finished = sorted(path.parent for path in self.home.glob("generations/*/manifest.json"))
        for folder in finished[:-_KEPT]:
            if folder.name != current_id:
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class LoadedGeneration:
    """A generation's manifest and rows, as the legs and the ingress keep them in memory."""

    manifest: Manifest
    chunks: tuple[SubChunk, ...]


def load_rows(home: Path, generation_id: str) -> LoadedGeneration:
    """Read a generation without its vectors, and so without opening its store.

    Raises:
        StoreError: it is not there or is damaged.
    """
    generations = Generations(home)
    manifest = generations.read(generation_id)
    return LoadedGeneration(manifest, generations.read_rows(manifest))


def load_generation(home: Path, generation_id: str) -> tuple[LoadedGeneration, VectorStore]:
    """Read a generation: its rows, and its open store for the vectors.

    Raises:
        StoreError: it is not there or cannot be read.
    """
    generations = Generations(home)
    manifest = generations.read(generation_id)
    store = generations.open_store(manifest)
    return LoadedGeneration(manifest, tuple(store.chunks())), store


def _write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, after a loss of power too."""
    building = path.with_name(path.name + ".new")
    with building.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    building.replace(path)
