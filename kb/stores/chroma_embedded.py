"""Chroma, embedded: a directory a generation, a collection a vector space.

Chroma's client is not safe across processes, and merely opening a store changes its files, the
index's too. So a published directory is never opened: a reader opens a private copy of it, and
every byte stays as it was sealed (ADR 6).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from kb.errors import StoreError
from kb.stores.chroma_collections import (
    ChromaVectors,
    check_collection,
    create_collection,
    telling_errors,
)
from kb.types import Matrix, VectorSpace

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api.client import Client

_PREFIX: Final = "adherence-kb-"


class ChromaEmbeddedStore:
    """Hold every generation under ``home/generations/<id>/chroma``."""

    def __init__(self, home: Path) -> None:
        self._generations = home / "generations"

    def create(
        self, generation: str, spaces: Sequence[VectorSpace], base: str | None
    ) -> ChromaEmbeddedWriter:
        """Begin a generation, from a copy of ``base``. Raises StoreError."""
        folder = self._folder(generation)
        try:
            folder.mkdir(parents=True)
            if base is not None:
                shutil.copytree(self._folder(base), folder, dirs_exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be made ({error.strerror})") from error
        return ChromaEmbeddedWriter(folder, spaces)

    def open(
        self,
        generation: str,
        spaces: Sequence[VectorSpace],
        seals: Mapping[str, str],
        *,
        thorough: bool = False,
    ) -> _PrivateReader:
        """Open a finished generation. Raises StoreError when a file is not what was sealed."""
        del thorough  # Every file is compared each time, before anything interprets it.
        folder = self._folder(generation)
        _check_seals(folder, seals)
        private = _private_copy(folder)
        try:
            client = _client(private)
            collections = {
                space.name: check_collection(client, space.name, space, str(folder))
                for space in spaces
            }
        except BaseException:
            shutil.rmtree(private, ignore_errors=True)
            raise
        return _PrivateReader(collections, client, private)

    def drop(self, generation: str) -> None:
        """Delete a generation's directory, documents included. Raises StoreError."""
        folder = self._folder(generation).parent
        try:
            if folder.exists():
                shutil.rmtree(folder)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be deleted ({error.strerror})") from error

    def generations(self) -> list[str]:
        """Name every generation of which there is anything, in ascending order."""
        return sorted(path.name for path in self._generations.glob("*") if path.is_dir())

    def announce(self, generation: str, spaces: Sequence[VectorSpace]) -> None:
        """Do nothing: a directory has no other names."""

    def _folder(self, generation: str) -> Path:
        return self._generations / generation / "chroma"


class _PrivateReader(ChromaVectors):
    """Read a private copy, which goes with its reader."""

    def __init__(
        self, collections: Mapping[str, Collection], client: Client, private: Path
    ) -> None:
        super().__init__(collections)
        self._dispose = weakref.finalize(self, _dispose, client, private)

    def close(self) -> None:
        """Close the database and delete the copy."""
        self._dispose()


class ChromaEmbeddedWriter:
    """Fill one directory."""

    def __init__(self, folder: Path, spaces: Sequence[VectorSpace]) -> None:
        self._folder = folder
        self._client = _client(folder)
        wanted = {space.name: space for space in spaces}
        with telling_errors(str(folder)):
            there = {collection.name for collection in self._client.list_collections()}
            for name in there - wanted.keys():
                self._client.delete_collection(name)
        self.copied = frozenset(there & wanted.keys())
        collections = {}
        for name, space in wanted.items():
            collections[name] = (
                check_collection(self._client, name, None, str(folder))
                if name in self.copied
                else create_collection(self._client, name, space)
            )
        self._vectors = ChromaVectors(collections)

    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None:
        """Write vectors. Raises StoreError."""
        self._vectors.upsert(space, chunk_ids, vectors)

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None:
        """Delete vectors. Raises StoreError."""
        self._vectors.delete(space, chunk_ids)

    def finish(self) -> dict[str, str]:
        """Close the database, so that it lies on the disk whole, and sum every file.

        Raises:
            StoreError: the disk is full.
        """
        with telling_errors(str(self._folder)):
            self._client.close()
            for path in _files(self._folder):
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            return _sums(self._folder)


def _client(folder: Path) -> Client:
    import chromadb
    from chromadb.config import Settings

    with telling_errors(str(folder)):
        client = chromadb.PersistentClient(
            str(folder), settings=Settings(anonymized_telemetry=False)
        )
    return cast("Client", client)  # The interface that it is declared as lacks `close`.


def _check_seals(folder: Path, seals: Mapping[str, str]) -> None:
    try:
        found = _sums(folder)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be read ({error.strerror})") from error
    for name in sorted({*seals, *found}):
        if name not in found:
            raise StoreError(f"{folder / name}: is missing; run `retrieval ingest`")
        if name not in seals:
            raise StoreError(f"{folder / name}: does not belong here; run `retrieval ingest`")
        if found[name] != seals[name]:
            raise StoreError(f"{folder / name}: is damaged; run `retrieval ingest`")


def _sums(folder: Path) -> dict[str, str]:
    sums = {}
    for path in _files(folder):
        with path.open("rb") as file:
            sums[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _private_copy(folder: Path) -> Path:
    _remove_orphans()
    private = None
    try:
        private = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        shutil.copytree(folder, private, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        if private:
            shutil.rmtree(private, ignore_errors=True)
        raise StoreError(f"{folder}: cannot be copied for reading ({error})") from error
    return private


def _remove_orphans() -> None:
    """Delete the private copies of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _dispose(client: Client, private: Path) -> None:
    client.close()
    shutil.rmtree(private, ignore_errors=True)
