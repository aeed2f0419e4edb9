"""Qdrant, a server or Qdrant Cloud or in this process: a collection a vector space.

In this process (``path:/a/folder`` and ``:memory:``) one client alone holds the folder, so it is
for tests and for a single process.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from kb.errors import StoreError
from kb.stores.digest import SealingWriter, check_seal, digest_vectors, nearest, read_pages
from kb.stores.place import Place, needing_extra, read_http_address, spellings
from kb.stores.records import (
    Record,
    RecordDocuments,
    Register,
    SpaceRecord,
    check_same,
    describe_spaces,
    engine_name,
    find_space,
    slug,
)
from kb.types import EXACT_ROWS, Hit, Matrix, Vector, VectorSpace

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

_STORE: Final = "Qdrant"
_MEMORY: Final = ":memory:"
_PATH: Final = "path:"
_PORT: Final = 6333
_TIMEOUT_S: Final = 30
_WRITE: Final = 256  # Rows a request: with 3,072 dimensions 16 MB of JSON; a server takes 32.
_READ: Final = 1000
_SEARCH_WIDTH: Final = 256
_DISTANCE: Final = "Dot"
"""Of vectors of unit length it is the cosine. Asked for the cosine itself, Qdrant normalises again,
in this process at every search anew, and then no row is what was sealed."""


def open_qdrant(
    url: str, api_key: str | None, namespace: str
) -> tuple[RecordDocuments, QdrantStore]:
    """Open a Qdrant; a server is first called when something is read or written.

    Args:
        url: of a server, or ``path:/a/folder``, or ``:memory:``.
        api_key: for a server that wants one.
        namespace: keeps knowledge bases on one server apart.

    Raises:
        StoreError: the library is missing, or the address or the folder cannot be used.
    """
    engine = _open_engine(url, api_key)
    records = _QdrantRecords(engine, engine_name(namespace, "documents"))
    return RecordDocuments(records), QdrantStore(engine, records, namespace)


class QdrantStore:
    """Hold every generation in collections of one Qdrant."""

    def __init__(self, engine: _Engine, records: _QdrantRecords, namespace: str) -> None:
        self._engine = engine
        self._register = Register(records, str(engine.place))
        self._namespace = namespace

    def create(
        self, generation: str, spaces: Sequence[VectorSpace], base: str | None
    ) -> SealingWriter:
        """Begin an empty generation: Qdrant copies no collections. Raises StoreError."""
        del base
        names = {s.name: engine_name(self._namespace, generation, s.name) for s in spaces}
        self._register.begin(generation, describe_spaces(names, spaces))
        for space in spaces:
            self._engine.create(names[space.name], space.fingerprint.dimension)
        vectors = _QdrantVectors(self._engine, names, spaces)
        return SealingWriter(vectors, vectors.digest, names)

    def open(
        self,
        generation: str,
        spaces: Sequence[VectorSpace],
        seals: Mapping[str, str],
        *,
        thorough: bool = False,
    ) -> _QdrantVectors:
        """Open a finished generation. Raises StoreError when it is not what was sealed."""
        where = str(self._engine.place)
        found = self._register.read(generation)
        if found is None:
            raise StoreError(
                f"{where}: there is no generation {generation}; run `retrieval ingest`"
            )
        records = {s.name: find_space(where, generation, s, found) for s in spaces}
        vectors = _QdrantVectors(
            self._engine, {name: record.relation for name, record in records.items()}, spaces
        )
        for space in spaces:
            self._check(space, records[space.name], vectors)
            check_seal(where, space, seals, partial(vectors.digest, space.name), thorough=thorough)
        return vectors

    def drop(self, generation: str) -> None:
        """Delete a generation, whatever there is of it. Raises StoreError."""
        for space in (self._register.read(generation) or {}).values():
            self._engine.drop(space.relation)
        self._register.end(generation)

    def generations(self) -> list[str]:
        """Name every generation of which there is anything, in ascending order."""
        return self._register.generations()

    def announce(self, generation: str, spaces: Sequence[VectorSpace]) -> None:
        """Point one alias a space at the generation, and drop all others, in one step.

        They are for other readers, who must ask with vectors of unit length.
        """
        own = {
            space.relation
            for known in self._register.generations()
            for space in (self._register.read(known) or {}).values()
        }
        prefix = f"{slug(self._namespace)}-current-"
        self._engine.point(
            {
                f"{prefix}{space.name}": engine_name(self._namespace, generation, space.name)
                for space in spaces
            },
            lambda alias, collection: alias.startswith(prefix) and collection in own,
        )

    def close(self) -> None:
        """Let go of the connection or the folder; the documents' too."""
        self._engine.close()

    def _check(self, space: VectorSpace, record: SpaceRecord, vectors: _QdrantVectors) -> None:
        where = str(self._engine.place)
        dimension, metric = self._engine.describe(record.relation)
        check_same(where, space, "dimension", dimension, space.fingerprint.dimension)
        check_same(where, space, "metric", metric, _DISTANCE)
        check_same(where, space, "number of rows", vectors.count(space.name), space.rows)


class _QdrantVectors:
    """Read and write the collections of one generation."""

    def __init__(
        self, engine: _Engine, collections: Mapping[str, str], spaces: Sequence[VectorSpace]
    ) -> None:
        self.spaces = {space.name: space for space in spaces}
        self._engine = engine
        self._collections = collections

    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None:
        for start in range(0, len(chunk_ids), _WRITE):
            ids = chunk_ids[start : start + _WRITE]
            self._engine.upsert(
                self._collections[space],
                list(ids),
                [{"id": chunk_id} for chunk_id in ids],
                vectors[start : start + _WRITE].tolist(),
            )

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None:
        self._engine.delete(self._collections[space], chunk_ids)

    def digest(self, space: str) -> str:
        """Hash a space's rows as they are read back."""
        ids = (str(payload["id"]) for payload in self._engine.scroll(self._collections[space], {}))
        return digest_vectors(read_pages(ids, lambda page: self.vectors(space, page)))

    def count(self, space: str) -> int:
        """Count a space's rows. Raises StoreError."""
        return self._engine.count(self._collections[space])

    def vectors(self, space: str, chunk_ids: Sequence[str]) -> Matrix:
        """Read vectors, in the given order. Raises StoreError when one is not there."""
        found = self._engine.vectors(self._collections[space], chunk_ids)
        if missing := [chunk_id for chunk_id in chunk_ids if chunk_id not in found]:
            raise StoreError(
                f"{self._engine.place}: {space} holds no {missing[0]}; run `retrieval ingest`"
            )
        rows = [found[chunk_id] for chunk_id in chunk_ids]
        dimension = self.spaces[space].fingerprint.dimension
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), dimension)

    def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
        """Find the nearest rows by cosine similarity, best first."""
        collection = self._collections[space]
        exact = self.spaces[space].rows <= EXACT_ROWS
        return nearest(
            lambda limit: self._engine.search(collection, vector, limit, exact=exact), depth
        )

    def close(self) -> None:
        """Do nothing: the connection is the store's."""


class _QdrantRecords:
    """Keep records as points without vectors, in one collection."""

    def __init__(self, engine: _Engine, collection: str) -> None:
        self._engine = engine
        self._collection = collection
        self._found = False

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        if not self._exists():
            return {}
        return {
            str(payload["key"]): str(payload["text"])
            for payload in self._engine.payloads(self._collection, keys)
        }

    def write(self, record: Record) -> None:
        if not self._exists():
            self._engine.create(self._collection, None, indexed=("kind", "owner"))
            self._found = True
        payload: dict[str, object] = {
            "key": record.key,
            "kind": record.kind,
            "owner": record.owner,
            "text": record.text,
        }
        self._engine.upsert(self._collection, [record.key], [payload], [{}])

    def delete(self, keys: Sequence[str]) -> None:
        if self._exists():
            self._engine.delete(self._collection, keys)

    def keys(self, kind: str, owner: str | None = None) -> list[str]:
        if not self._exists():
            return []
        wanted = {"kind": kind} | ({} if owner is None else {"owner": owner})
        found = self._engine.scroll(self._collection, wanted, ["key"])
        return [str(payload["key"]) for payload in found]

    def _exists(self) -> bool:
        self._found = self._found or self._engine.exists(self._collection)
        return self._found


class _Engine:
    """Call Qdrant, with every failure a StoreError.

    Args:
        client: made with a timeout.
        place: for messages.
        local: the client is the whole engine, and not safe across threads.
    """

    def __init__(self, client: QdrantClient, place: Place, *, local: bool) -> None:
        self.place = place
        self._client = client
        self._local = local
        self._one_at_a_time: AbstractContextManager[object] = (
            threading.RLock() if local else nullcontext()
        )

    def create(self, collection: str, dimension: int | None, indexed: Sequence[str] = ()) -> None:
        """Make a collection, with vectors where a dimension is given."""
        from qdrant_client import models

        vectors: dict[str, models.VectorParams] | models.VectorParams = (
            {}
            if dimension is None
            else models.VectorParams(size=dimension, distance=models.Distance(_DISTANCE))
        )
        with self._calling(f"making {collection}"):
            self._client.create_collection(
                collection, vectors_config=vectors, on_disk_payload=dimension is None
            )
            # Qdrant Cloud refuses to filter by what is not indexed; the local engine has no index.
            for name in () if self._local else indexed:
                self._client.create_payload_index(
                    collection, name, models.PayloadSchemaType.KEYWORD, wait=True
                )

    def exists(self, collection: str) -> bool:
        """Tell whether there is a collection."""
        with self._calling(f"looking for {collection}"):
            return self._client.collection_exists(collection)

    def drop(self, collection: str) -> None:
        """Delete a collection, if it is there, and the aliases that point at it."""
        with self._calling(f"deleting {collection}"):
            self._client.delete_collection(collection)

    def describe(self, collection: str) -> tuple[int | None, str]:
        """Give a collection's dimension and metric."""
        with self._calling(f"describing {collection}"):
            vectors = self._client.get_collection(collection).config.params.vectors
        if vectors is None or isinstance(vectors, dict):
            return None, "none"
        return vectors.size, vectors.distance.value

    def point(self, aliases: Mapping[str, str], obsolete: Callable[[str, str], bool]) -> None:
        """Set aliases and delete the obsolete ones, all at once."""
        from qdrant_client import models

        with self._calling("moving aliases"):
            found = self._client.get_aliases().aliases
            gone = [a.alias_name for a in found if obsolete(a.alias_name, a.collection_name)]
            steps: list[models.AliasOperations] = [
                models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))
                for alias in gone
            ]
            for alias, collection in aliases.items():
                create = models.CreateAlias(collection_name=collection, alias_name=alias)
                steps.append(models.CreateAliasOperation(create_alias=create))
            if steps:
                self._client.update_collection_aliases(steps)

    def upsert(
        self,
        collection: str,
        keys: Sequence[str],
        payloads: Sequence[dict[str, object]],
        vectors: Sequence[list[float] | dict[str, list[float]]],
    ) -> None:
        """Write points, and wait until they are read."""
        from qdrant_client import models

        points = [
            # An empty mapping is a point without a vector; its type knows only filled ones.
            models.PointStruct(
                id=_point_id(key), payload=payload, vector=cast("list[float]", vector)
            )
            for key, payload, vector in zip(keys, payloads, vectors, strict=True)
        ]
        with self._calling(f"writing to {collection}"):
            self._client.upsert(collection, points, wait=True)

    def delete(self, collection: str, keys: Sequence[str]) -> None:
        """Delete points, if they are there."""
        from qdrant_client import models

        for page in _pages(keys):
            selector = models.PointIdsList(points=[_point_id(key) for key in page])
            with self._calling(f"deleting from {collection}"):
                self._client.delete(collection, selector, wait=True)

    def count(self, collection: str) -> int:
        """Count points, exactly."""
        with self._calling(f"counting {collection}"):
            return self._client.count(collection, exact=True).count

    def payloads(self, collection: str, keys: Sequence[str]) -> list[dict[str, object]]:
        """Read the payloads of those points that are there."""
        found: list[dict[str, object]] = []
        for page in _pages(keys):
            with self._calling(f"reading {collection}"):
                points = self._client.retrieve(collection, [_point_id(key) for key in page])
            found.extend(point.payload or {} for point in points)
        return found

    def vectors(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, list[float]]:
        """Read the vectors of those rows that are there, by chunk id."""
        found = {}
        for page in _pages(chunk_ids):
            with self._calling(f"reading {collection}"):
                points = self._client.retrieve(
                    collection, [_point_id(key) for key in page], with_vectors=True
                )
            for point in points:
                found[str((point.payload or {})["id"])] = cast("list[float]", point.vector)
        return found

    def scroll(
        self, collection: str, wanted: Mapping[str, str], fields: Sequence[str] = ("id",)
    ) -> Iterator[dict[str, object]]:
        """Read the named fields of every point that has the wanted ones."""
        from qdrant_client import models

        conditions: list[models.Condition] = [
            models.FieldCondition(key=key, match=models.MatchValue(value=value))
            for key, value in wanted.items()
        ]
        offset: models.ExtendedPointId | None = None
        while True:
            with self._calling(f"listing {collection}"):
                points, offset = self._client.scroll(
                    collection,
                    scroll_filter=models.Filter(must=conditions) if conditions else None,
                    limit=_READ,
                    offset=offset,
                    with_payload=list(fields),
                )
            yield from (point.payload or {} for point in points)
            if offset is None:
                return

    def search(self, collection: str, vector: Vector, limit: int, *, exact: bool) -> list[Hit]:
        """Find the nearest points, best first."""
        from qdrant_client import models

        params = models.SearchParams(exact=exact, hnsw_ef=max(limit, _SEARCH_WIDTH))
        # The local engine searches exactly, and warns of parameters.
        with self._calling(f"searching {collection}"):
            points = self._client.query_points(
                collection,
                query=vector.tolist(),
                limit=limit,
                search_params=None if self._local else params,
            ).points
        return [Hit(str((point.payload or {})["id"]), float(point.score)) for point in points]

    def close(self) -> None:
        """Let go of the connection or the folder."""
        with self._calling("closing"):
            self._client.close()

    @contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        with self.place.telling_errors(doing), self._one_at_a_time:
            yield


def _open_engine(url: str, api_key: str | None) -> _Engine:
    with needing_extra("qdrant"):
        from qdrant_client import QdrantClient

    if url == _MEMORY or url.startswith(_PATH):
        place = Place(_STORE, url, spellings(api_key))
        with place.telling_errors("opening"):
            # _Engine lets one thread in at a time.
            client = (
                QdrantClient(_MEMORY, force_disable_check_same_thread=True)
                if url == _MEMORY
                else QdrantClient(
                    path=url.removeprefix(_PATH), force_disable_check_same_thread=True
                )
            )
        return _Engine(client, place, local=True)
    address = read_http_address(_STORE, url, api_key)
    with address.place.telling_errors("opening"):
        client = QdrantClient(
            host=address.host,
            port=address.port or (443 if address.scheme == "https" else _PORT),
            https=address.scheme == "https",
            prefix=address.path or None,
            api_key=api_key,
            headers=address.headers,
            timeout=_TIMEOUT_S,
            # It would call the server now, and only warn when that fails.
            check_compatibility=False,
        )
    return _Engine(client, address.place, local=False)


def _point_id(key: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, key))


def _pages(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _READ):
        yield keys[start : start + _READ]
