"""Immutable versions of the knowledge base, and the one pointer that says which is served.

Documents, the same in every store (embedded, they are files under ``KB_HOME``):

CURRENT                              the id of the published generation, replaced atomically
generations/<id>/rows.jsonl          the sub-chunks, a line each
generations/<id>/manifest.json       written last: a generation without it was never finished

The vectors lie beside them in the `kb.protocols.VectorStore`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from kb.errors import InputError, StoreError
from kb.protocols import Documents, VectorReader, VectorStore
from kb.rows import decode_rows, hash_rows
from kb.types import Fingerprint, SubChunk, VectorSpace

logger = logging.getLogger("ray.serve.adherence_retrieval")

CURRENT = "CURRENT"
_FOLDER = "generations"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a generation holds: its rows' hash, its vector spaces by preference, and its seals."""

    id: str
    created: str
    rows: int
    content_hash: str
    spaces: tuple[VectorSpace, ...] = ()
    seals: dict[str, str] = field(default_factory=dict)
    apart: dict[str, list[str]] = field(default_factory=dict)
    """By space, the rows that the store's index does not reach: they are compared one by one."""

    @property
    def embedders(self) -> str:
        """Name the embedders, for a person."""
        return ", ".join(str(space.fingerprint) for space in self.spaces) or "none"


@dataclass(frozen=True, slots=True)
class LoadedGeneration:
    """A generation's manifest and rows, as the legs and the ingress keep them in memory."""

    manifest: Manifest
    chunks: tuple[SubChunk, ...]


class Generations:
    """The generations of one knowledge base.

    Args:
        documents: where manifests, rows and the pointer lie.
        vectors: where the vectors lie.
        lock_file: whoever holds it may build.
    """

    def __init__(self, documents: Documents, vectors: VectorStore, lock_file: Path) -> None:
        self.vectors = vectors
        self._documents = documents
        self._lock_file = lock_file

    def current_id(self) -> str | None:
        """Read which generation is published; None when none ever was. Raises StoreError."""
        data = self._documents.get(CURRENT)
        if data is None:
            return None
        generation_id = data.decode("ascii", "replace").strip()
        if not _ID.fullmatch(generation_id):
            raise StoreError("CURRENT names no generation; run `retrieval ingest`")
        return generation_id

    def current(self) -> Manifest | None:
        """Read the published generation's manifest; None when nothing was ever published.

        Raises:
            StoreError: the pointer names a generation that is not there or not readable.
        """
        generation_id = self.current_id()
        return self.read(generation_id) if generation_id else None

    def ids(self) -> list[str]:
        """Name the finished generations, oldest first. Raises StoreError."""
        found = (name.split("/") for name in self._documents.names())
        return [parts[1] for parts in found if parts[0] == _FOLDER and parts[2] == "manifest.json"]

    def read(self, generation_id: str) -> Manifest:
        """Read a generation's manifest. Raises StoreError."""
        name = _document(generation_id, "manifest.json")
        data = self._documents.get(name)
        if data is None:
            raise StoreError(f"{name}: there is none; run `retrieval ingest`")
        try:
            return _decode(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"{name}: is damaged ({type(error).__name__}); run `retrieval ingest`"
            ) from error

    def read_rows(self, manifest: Manifest) -> tuple[SubChunk, ...]:
        """Read a generation's rows. Raises StoreError when they are not what was published."""
        name = _document(manifest.id, "rows.jsonl")
        data = self._documents.get(name)
        if data is None or hash_rows(data) != manifest.content_hash:
            what = "is missing" if data is None else "is damaged"
            raise StoreError(f"{name}: {what}; run `retrieval ingest` to build it again")
        return decode_rows(data)

    def load(self, generation_id: str) -> LoadedGeneration:
        """Read a generation without its vectors. Raises StoreError when it is not sound."""
        manifest = self.read(generation_id)
        return LoadedGeneration(manifest, self.read_rows(manifest))

    def open_vectors(self, manifest: Manifest, *, thorough: bool = False) -> VectorReader:
        """Open a generation's vectors. Raises StoreError when they are not what was published."""
        return self.vectors.open(manifest.id, manifest.spaces, manifest.seals, thorough=thorough)

    def newest_sound(self, load: Callable[[str], _T]) -> tuple[str, _T]:
        """Load the published generation or, where it cannot be, the newest before it that can.

        Raises:
            StoreError: nothing was ever published, or none of it can be loaded; the message is the
                published one's.
        """
        published = self.current_id()
        if published is None:
            raise StoreError("no knowledge base yet; run `retrieval ingest`")
        first: StoreError | None = None
        for generation_id in self.fallbacks(published):
            try:
                return generation_id, load(generation_id)
            except StoreError as error:
                logger.warning("generation %s cannot be served: %s", generation_id, error)
                first = first or error
        raise first or StoreError(f"generation {published}: there is none")

    def fallbacks(self, published: str) -> list[str]:
        """Give a generation and those before it, in the order in which to try them."""
        return [published, *(i for i in reversed(self.ids()) if i < published)]

    def verify(self, generation_id: str) -> Manifest:
        """Compare all of a generation with its manifest. Raises StoreError naming what differs."""
        loaded = self.load(generation_id)
        self.open_vectors(loaded.manifest, thorough=True).close()
        return loaded.manifest

    def finish(self, manifest: Manifest, rows: bytes) -> None:
        """Write a generation's rows and manifest: from then on it is whole. Raises StoreError."""
        self._documents.put(_document(manifest.id, "rows.jsonl"), rows)
        self._documents.put(_document(manifest.id, "manifest.json"), _encode(manifest))

    def publish(self, generation_id: str) -> None:
        """Make a finished generation the served one, by replacing one small document.

        Raises:
            InputError: there is no such generation.
            StoreError: it is damaged.
        """
        if generation_id not in self.ids():
            raise InputError(f"no generation {generation_id}; see `retrieval generations list`")
        self.switch_to(self.verify(generation_id))

    def switch_to(self, manifest: Manifest) -> None:
        """Publish a generation that the caller has just verified or built. Raises StoreError."""
        self._documents.put(CURRENT, manifest.id.encode() + b"\n")
        self.vectors.announce(manifest.id, manifest.spaces)

    def rollback(self) -> str:
        """Publish the newest sound generation before the current one, and name it.

        Raises:
            InputError: there is none before it.
            StoreError: none before it is sound.
        """
        current = self.current_id()
        before = [i for i in self.ids() if current and i < current]
        if not before:
            raise InputError("there is no generation before the current one to return to")
        problem: StoreError | None = None
        for generation_id in reversed(before):
            try:
                self.publish(generation_id)
            except StoreError as error:
                problem = error
            else:
                return generation_id
        raise problem or StoreError("no generation before the current one is sound")

    def prune(self, keep: int) -> list[str]:
        """Delete all but the newest ``keep`` generations and the current one; name the deleted.

        Call it with the lock held.
        """
        current = self.current_id()
        dropped = [i for i in self.ids()[: -keep or None] if i != current]
        for generation_id in dropped:
            self.drop(generation_id)
        return dropped

    def drop(self, generation_id: str) -> None:
        """Delete a generation. Its manifest goes first: what is left then was never finished."""
        self._documents.delete(_document(generation_id, "manifest.json"))
        self.vectors.drop(generation_id)
        self._documents.delete(_document(generation_id, "rows.jsonl"))

    def discard_unfinished(self) -> list[str]:
        """Delete what a crashed ingest left, and name it. Call it with the lock held."""
        names = self._documents.names()
        for name in names:
            if "/" not in name and name != CURRENT:
                self._documents.delete(name)  # A killed write of the pointer left it.
        begun = {name.split("/")[1] for name in names if "/" in name}
        unfinished = sorted((begun | set(self.vectors.generations())) - set(self.ids()))
        for generation_id in unfinished:
            self.drop(generation_id)
        return unfinished

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the right to build. Raises StoreError at once when another process has it."""
        home = self._lock_file.parent
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._lock_file, timeout=0)
            lock.acquire()
        except Timeout:  # It is an OSError too.
            raise StoreError(f"{home}: another ingest is running; wait for it") from None
        except OSError as error:
            raise StoreError(f"{home}: cannot be made a folder: {error.strerror}") from None
        try:
            yield
        finally:
            lock.release()


def _document(generation_id: str, name: str) -> str:
    return f"{_FOLDER}/{generation_id}/{name}"


def _encode(manifest: Manifest) -> bytes:
    body = json.dumps(asdict(manifest), indent=2, sort_keys=True)
    sealed = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": json.loads(body)}
    return json.dumps(sealed, indent=2, sort_keys=True).encode() + b"\n"


def _decode(data: bytes) -> Manifest:
    """Read what `_encode` wrote. Raises ValueError, KeyError, TypeError, AttributeError."""
    sealed = json.loads(data)
    values = sealed["manifest"]
    body = json.dumps(values, indent=2, sort_keys=True)
    if hashlib.sha256(body.encode()).hexdigest() != sealed["sha256"]:
        raise ValueError("the manifest's own sum differs")
    spaces = tuple(
        VectorSpace(Fingerprint(**space["fingerprint"]), tuple(space["languages"]), space["rows"])
        for space in values.pop("spaces")
    )
    return Manifest(**values, spaces=spaces)
