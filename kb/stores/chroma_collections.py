"""What embedded Chroma and a Chroma server have in common: a collection a vector space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from kb.errors import StoreError
from kb.stores.digest import nearest
from kb.types import Hit, Matrix, Vector, VectorSpace

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api import ClientAPI

METRIC: Final = "cosine"  # Chroma's default is l2, and a collection keeps the one it was made with.
BATCH: Final = 5000  # Chroma refuses more than 5,461 rows a call.
Telling = Callable[[str], AbstractContextManager[None]]
"""Given what is done, turn what goes wrong in it into a StoreError."""
_INDEX: Final = {"space": METRIC, "ef_construction": 200, "max_neighbors": 32, "ef_search": 200}


@contextmanager
def telling_errors(where: str) -> Iterator[None]:
    """Turn whatever Chroma raises into a StoreError that says where."""
    try:
        yield
    except (StoreError, KeyboardInterrupt, SystemExit):
        raise
    # A damaged database makes its Rust core panic, which is not even an Exception.
    except BaseException as error:
        raise StoreError(f"{where}: Chroma failed: {type(error).__name__}: {error}") from error


class ChromaVectors:
    """Read and write the collections of one generation.

    Args:
        collections: by the name of the space.
        place: for messages.
        telling: for errors; a server's must not show its secrets.
    """

    def __init__(
        self,
        collections: Mapping[str, Collection],
        place: str = "Chroma",
        telling: Telling = telling_errors,
    ) -> None:
        self._collections = collections
        self._place = place
        self._telling = telling

    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None:
        """Write vectors. Raises StoreError."""
        collection = self._collections[space]
        for start in range(0, len(chunk_ids), BATCH):
            with self._telling(f"writing rows from {start} of {space}"):
                collection.upsert(
                    ids=list(chunk_ids[start : start + BATCH]),
                    embeddings=vectors[start : start + BATCH],
                )

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None:
        """Delete vectors. Raises StoreError."""
        for start in range(0, len(chunk_ids), BATCH):
            with self._telling(f"calling for {space}"):
                self._collections[space].delete(ids=list(chunk_ids[start : start + BATCH]))

    def count(self, space: str) -> int:
        """Count a space's rows."""
        with self._telling(f"calling for {space}"):
            return self._collections[space].count()

    def vectors(self, space: str, chunk_ids: Sequence[str]) -> Matrix:
        """Read vectors, in the given order. Raises StoreError when one is not there."""
        parts = [np.empty((0, 0), np.float32)]
        for start in range(0, len(chunk_ids), BATCH):
            part = list(chunk_ids[start : start + BATCH])
            with self._telling(f"calling for {space}"):
                # An id that is asked for twice would be refused.
                rows = self._collections[space].get(
                    ids=list(dict.fromkeys(part)), include=["embeddings"]
                )
            place = {chunk_id: row for row, chunk_id in enumerate(rows["ids"])}
            if missing := [chunk_id for chunk_id in part if chunk_id not in place]:
                raise StoreError(
                    f"{self._place}: {space} holds no {missing[0]}; run `retrieval ingest`"
                )
            matrix = np.asarray(rows["embeddings"], dtype=np.float32)
            parts.append(matrix[[place[chunk_id] for chunk_id in part]])
        return np.concatenate(parts[1:]) if len(parts) > 1 else parts[0]

    def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
        """Find the nearest rows by cosine similarity, best first (approximate)."""
        return nearest(lambda limit: self._search(space, vector, limit), depth)

    def close(self) -> None:
        """Do nothing: a client of a server is shared."""

    def ids(self, space: str) -> list[str]:
        """Name a space's rows, in no order. Raises StoreError."""
        with self._telling(f"calling for {space}"):
            return self._collections[space].get(include=[])["ids"]

    def _search(self, space: str, vector: Vector, limit: int) -> list[Hit]:
        with self._telling(f"calling for {space}"):
            result = self._collections[space].query(
                query_embeddings=vector[None, :], n_results=limit, include=["distances"]
            )
        distances = (result["distances"] or [[]])[0]
        return [Hit(i, 1.0 - d) for i, d in zip(result["ids"][0], distances, strict=True)]


def create_collection(
    client: ClientAPI, name: str, space: VectorSpace, telling: Telling = telling_errors
) -> Collection:
    """Make an empty collection for a space. Raises StoreError."""
    with telling(name):
        return client.create_collection(
            name,
            configuration={"hnsw": dict(_INDEX)},  # type: ignore[arg-type]
            metadata={"fingerprint": str(space.fingerprint)},
            # Without it Chroma would download a model to embed text.
            embedding_function=None,
        )


def check_collection(
    client: ClientAPI,
    name: str,
    space: VectorSpace | None,
    where: str,
    telling: Telling = telling_errors,
) -> Collection:
    """Find a collection and compare it with the space that it should hold.

    Raises:
        StoreError: it is not there, or its metric, fingerprint, count or dimension is another.
    """
    with telling(where):
        collection = _find_collection(client, name, space, where)
        metric = (collection.configuration_json.get("hnsw") or {}).get("space")
        if metric != METRIC:
            raise StoreError(
                f"{where}: the metric of {name} is {metric!r}, not {METRIC!r}; "
                "run `retrieval ingest` to build it again"
            )
        if space is None:
            return collection
        known = (collection.metadata or {}).get("fingerprint")
        if known != str(space.fingerprint):
            raise StoreError(f"{where}: {name} holds vectors of {known}, not {space.fingerprint}")
        if (found := collection.count()) != space.rows:
            raise StoreError(f"{where}: {name} holds {found} rows, not {space.rows}")
        sample = collection.get(limit=1, include=["embeddings"])["embeddings"]
    if sample is not None and len(sample) and len(sample[0]) != space.fingerprint.dimension:
        raise StoreError(
            f"{where}: the vectors of {name} have {len(sample[0])} dimensions, "
            f"not those of {space.fingerprint}"
        )
    return collection


def _find_collection(
    client: ClientAPI, name: str, space: VectorSpace | None, where: str
) -> Collection:
    from chromadb.errors import NotFoundError

    try:
        return client.get_collection(name, embedding_function=None)
    except NotFoundError:
        there = ", ".join(sorted(c.name for c in client.list_collections(limit=10))) or "nothing"
        wanted = f" of {space.fingerprint}" if space else ""
        raise StoreError(f"{where}: there is no {name}{wanted}; there is {there}") from None
