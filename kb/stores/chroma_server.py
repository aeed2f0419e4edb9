"""A Chroma server: a collection a vector space, and one of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import numpy as np

from kb.errors import StoreError
from kb.stores.chroma_collections import ChromaVectors, check_collection, create_collection
from kb.stores.digest import SealingWriter, check_seal, digest_vectors, read_pages
from kb.stores.place import HttpAddress, Place, read_http_address
from kb.stores.records import (
    Record,
    RecordDocuments,
    Register,
    describe_spaces,
    engine_name,
    find_space,
)
from kb.types import VectorSpace

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api.client import Client

_STORE: Final = "Chroma"
_PORT: Final = 8000
_CONNECT_S: Final = 5.0
_TIMEOUT_S: Final = 30.0
_NO_VECTOR: Final = np.ones(1, np.float32)  # Chroma keeps no row without one.


def open_chroma_server(url: str, namespace: str) -> tuple[RecordDocuments, ChromaServerStore]:
    """Open a Chroma server.

    Args:
        url: as ``http://host:8000``; a user and a password in it are sent as basic authentication.
        namespace: keeps knowledge bases on one server apart.

    Raises:
        StoreError: the address is malformed, or the server does not answer.
    """
    address = read_http_address(_STORE, url)
    client = _connect(address)
    records = _ChromaRecords(client, address.place, engine_name(namespace, "documents"))
    return RecordDocuments(records), ChromaServerStore(client, address.place, records, namespace)


class ChromaServerStore:
    """Hold every generation in collections of one server."""

    def __init__(
        self, client: Client, place: Place, records: _ChromaRecords, namespace: str
    ) -> None:
        self._client = client
        self._place = place
        self._register = Register(records, str(place))
        self._namespace = namespace

    def create(
        self, generation: str, spaces: Sequence[VectorSpace], base: str | None
    ) -> SealingWriter:
        """Begin an empty generation: a server copies no collections. Raises StoreError."""
        del base
        names = {s.name: engine_name(self._namespace, generation, s.name) for s in spaces}
        self._register.begin(generation, describe_spaces(names, spaces))
        collections = {}
        for space in spaces:
            with self._place.telling_errors(f"making {names[space.name]}"):
                collections[space.name] = create_collection(self._client, names[space.name], space)
        vectors = self._vectors(collections)
        return SealingWriter(vectors, partial(_digest, vectors), collections)

    def open(
        self,
        generation: str,
        spaces: Sequence[VectorSpace],
        seals: Mapping[str, str],
        *,
        thorough: bool = False,
    ) -> ChromaVectors:
        """Open a finished generation. Raises StoreError when it is not what was sealed."""
        where = str(self._place)
        found = self._register.read(generation)
        if found is None:
            raise StoreError(
                f"{where}: there is no generation {generation}; run `retrieval ingest`"
            )
        relations = {s.name: find_space(where, generation, s, found).relation for s in spaces}
        collections = {
            space.name: check_collection(
                self._client,
                relations[space.name],
                space,
                where,
                lambda _: self._place.telling_errors(f"opening {generation}"),
            )
            for space in spaces
        }
        vectors = self._vectors(collections)
        for space in spaces:
            check_seal(
                where, space, seals, partial(_digest, vectors, space.name), thorough=thorough
            )
        return vectors

    def drop(self, generation: str) -> None:
        """Delete a generation, whatever there is of it. Raises StoreError."""
        from chromadb.errors import NotFoundError

        for space in (self._register.read(generation) or {}).values():
            with self._place.telling_errors(f"deleting {space.relation}"):
                try:
                    self._client.delete_collection(space.relation)
                except NotFoundError:
                    continue  # An earlier call was cut short after it.
        self._register.end(generation)

    def generations(self) -> list[str]:
        """Name every generation of which there is anything, in ascending order."""
        return self._register.generations()

    def announce(self, generation: str, spaces: Sequence[VectorSpace]) -> None:
        """Do nothing: a collection has no other names."""

    def close(self) -> None:
        """Let go of the connections; the documents' too."""
        client: Any = self._client
        with self._place.telling_errors("closing"):
            client.close()
            # What Chroma's own close leaves open.
            client._server._session.close()  # noqa: SLF001 - there is no method for it

    def _vectors(self, collections: Mapping[str, Collection]) -> ChromaVectors:
        return ChromaVectors(
            collections, place=str(self._place), telling=self._place.telling_errors
        )


class _ChromaRecords:
    """Keep records as metadata of rows, in one collection.

    Chroma would index the words of a document, and of metadata it does not.
    """

    def __init__(self, client: Client, place: Place, collection: str) -> None:
        self._client = client
        self._place = place
        self._name = collection
        self._collection: Collection | None = None

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        with self._calling("reading") as collection:
            if collection is None:
                return {}
            found = collection.get(ids=list(keys), include=["metadatas"])
        rows = zip(found["ids"], found["metadatas"] or [], strict=True)
        return {key: str(metadata["text"]) for key, metadata in rows}

    def write(self, record: Record) -> None:
        metadata = {"kind": record.kind, "owner": record.owner, "text": record.text}
        with self._calling("writing", make=True) as collection:
            cast("Collection", collection).upsert(
                ids=[record.key], embeddings=_NO_VECTOR[None, :], metadatas=[metadata]
            )

    def delete(self, keys: Sequence[str]) -> None:
        with self._calling("deleting from") as collection:
            if collection is not None:
                collection.delete(ids=list(keys))

    def keys(self, kind: str, owner: str | None = None) -> list[str]:
        where: dict[str, Any] = {"kind": kind}
        if owner is not None:
            where = {"$and": [where, {"owner": owner}]}
        with self._calling("listing") as collection:
            return [] if collection is None else collection.get(where=where, include=[])["ids"]

    @contextmanager
    def _calling(self, doing: str, *, make: bool = False) -> Iterator[Collection | None]:
        with self._place.telling_errors(f"{doing} {self._name}"):
            if self._collection is None:
                self._collection = self._find(make=make)
            yield self._collection

    def _find(self, *, make: bool) -> Collection | None:
        from chromadb.errors import NotFoundError

        if make:
            return self._client.get_or_create_collection(self._name, embedding_function=None)
        try:
            return self._client.get_collection(self._name, embedding_function=None)
        except NotFoundError:
            return None


def _digest(vectors: ChromaVectors, space: str) -> str:
    return digest_vectors(read_pages(vectors.ids(space), lambda page: vectors.vectors(space, page)))


def _connect(address: HttpAddress) -> Client:
    import chromadb
    from chromadb.config import Settings

    port = address.port or (443 if address.scheme == "https" else _PORT)
    timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S)
    with address.place.telling_errors("connecting"):
        # Making a client calls the server without a timeout: first see that it answers.
        base = f"{address.scheme}://{address.host}:{port}{address.path}"
        httpx.get(
            f"{base}/api/v2/heartbeat", headers=address.headers, timeout=timeout
        ).raise_for_status()
        client: Any = chromadb.HttpClient(
            host=f"{base}/api/v2" if address.path else address.host,
            port=port,
            ssl=address.scheme == "https",
            headers=dict(address.headers),  # Chroma adds its own to it.
            settings=Settings(anonymized_telemetry=False),
        )
        client._server._session.timeout = timeout  # noqa: SLF001 - there is no setting for it
        # It looked the tenant up, and has nothing more to do.
        client._admin_client._server._session.close()  # noqa: SLF001 - there is no method for it
    return cast("Client", client)
