"""Chroma, embedded: one directory a generation, written once, then only read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kb.errors import StoreError
from kb.types import Hit, Matrix, Source, SubChunk, Vector

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api import ClientAPI

COLLECTION = "sub-chunks"
_SPACE: Final = "cosine"  # Chroma's default is l2, and a collection keeps the one it was made with.
_BATCH = 5000  # Chroma refuses more than 5,461 rows a call.


class ChromaStore:
    """The rows of one generation. Use `create` to write one and `open` to read it.

    A generation without a vector space (no embedder was at hand) gets a placeholder vector of one
    dimension, since Chroma would else download a model to embed the text.
    """

    def __init__(self, client: ClientAPI, collection: Collection) -> None:
        self._client = client
        self._collection = collection

    @classmethod
    def create(cls, folder: Path) -> ChromaStore:
        """Make an empty store in a new directory."""
        client = _client(folder)
        collection = client.create_collection(
            COLLECTION,
            configuration={"hnsw": {"space": _SPACE}},
            # Without it Chroma would download a model to embed the text.
            embedding_function=None,
        )
        return cls(client, collection)

    @classmethod
    def open(cls, folder: Path) -> ChromaStore:
        """Open a store that `create` made.

        Raises:
            StoreError: there is none, or its collection measures another distance than cosine.
        """
        if not (folder / "chroma.sqlite3").is_file():
            raise StoreError(f"{folder}: there is no Chroma store here; run `retrieval ingest`")
        try:
            client = _client(folder)
            collection = client.get_collection(COLLECTION, embedding_function=None)
        # A damaged database makes it fail in other ways than by its own errors.
        except Exception as error:
            raise StoreError(f"{folder}: cannot open the store ({type(error).__name__})") from error
        space = (collection.configuration_json.get("hnsw") or {}).get("space")
        if space != _SPACE:
            raise StoreError(
                f"{folder}: the collection's space is {space!r}, not {_SPACE!r}; "
                "run `retrieval ingest` to build it again"
            )
        return cls(client, collection)

    def upsert(self, chunks: Sequence[SubChunk], vectors: Matrix | None) -> None:
        """Write rows; ``vectors`` is None in a store without a vector space. Raises StoreError."""
        from chromadb.errors import ChromaError

        if vectors is None:
            vectors = np.ones((len(chunks), 1), dtype=np.float32)
        for start in range(0, len(chunks), _BATCH):
            part = chunks[start : start + _BATCH]
            try:
                self._collection.upsert(
                    ids=[chunk.id for chunk in part],
                    embeddings=vectors[start : start + _BATCH],
                    documents=[chunk.text for chunk in part],
                    metadatas=[_metadata(chunk) for chunk in part],
                )
            except ChromaError as error:  # A full disk is one of its internal errors.
                raise StoreError(f"cannot write rows from {start}: {error}") from error

    def count(self) -> int:
        """Count the rows."""
        return self._collection.count()

    def chunks(self) -> list[SubChunk]:
        """Read every row, by id ascending."""
        rows = self._collection.get(include=["documents", "metadatas"])
        found = zip(rows["ids"], rows["documents"] or [], rows["metadatas"] or [], strict=True)
        return sorted((_chunk(*row) for row in found), key=lambda chunk: chunk.id)

    def vectors(self, chunk_ids: Sequence[str]) -> Matrix:
        """Read vectors, shape (len(chunk_ids), dimension), in the given order."""
        rows = self._collection.get(include=["embeddings"])
        place = {chunk_id: row for row, chunk_id in enumerate(rows["ids"])}
        matrix = np.asarray(rows["embeddings"], dtype=np.float32)
        return matrix[[place[chunk_id] for chunk_id in chunk_ids]]

    def search(self, vector: Vector, depth: int) -> list[Hit]:
        """Find the nearest rows by cosine similarity, best first (approximate)."""
        result = self._collection.query(
            query_embeddings=vector[None, :], n_results=depth, include=["distances"]
        )
        distances = (result["distances"] or [[]])[0]
        hits = (Hit(i, 1.0 - d) for i, d in zip(result["ids"][0], distances, strict=True))
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))


def _client(folder: Path) -> ClientAPI:
    import chromadb
    from chromadb.config import Settings

    folder.mkdir(parents=True, exist_ok=True)
    return chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))


def _metadata(chunk: SubChunk) -> dict[str, str | int | float | bool]:
    sources = [[s.name, s.url, s.licence, list(s.sections)] for s in chunk.sources]
    return {
        "card_id": chunk.card_id,
        "locale": chunk.locale,
        "ordinal": chunk.ordinal,
        "title": chunk.title,
        "category": chunk.category,
        "section": chunk.section,
        "drugs": json.dumps(chunk.drugs),
        "sources": json.dumps(sources),
    }


def _chunk(chunk_id: str, text: str, row: Any) -> SubChunk:
    return SubChunk(
        id=chunk_id,
        card_id=row["card_id"],
        locale=row["locale"],
        ordinal=row["ordinal"],
        title=row["title"],
        category=row["category"],
        section=row["section"],
        text=text,
        drugs=tuple(json.loads(row["drugs"])),
        sources=tuple(
            Source(name, url, licence, tuple(sections))
            for name, url, licence, sections in json.loads(row["sources"])
        ),
    )
