"""Documents and a register of generations, for an engine that keeps small texts by key."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from kb.errors import StoreError
from kb.types import Fingerprint, VectorSpace

METRIC: Final = "cosine"
_PART: Final = 720_000  # In base64 below a million: engines and proxies limit a request.
_TRIES: Final = 20
_DOCUMENT, _DOCUMENT_PART, _GENERATION = "document", "part", "generation"


@dataclass(frozen=True, slots=True)
class Record:
    """A text under a key; ``kind`` and ``owner`` are what it is found by."""

    key: str
    kind: str
    owner: str
    text: str


class Records(Protocol):
    """Keep records, each of which is written whole or not at all."""

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """Read texts by key; what is not there is left out. Raises StoreError."""

    def write(self, record: Record) -> None:
        """Write a record, over one of the same key. Raises StoreError."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete records, if they are there. Raises StoreError."""

    def keys(self, kind: str, owner: str | None = None) -> list[str]:
        """Find the keys of a kind, and of an owner where one is given. Raises StoreError."""


class RecordDocuments:
    """Keep each document in one record or, when it is large, in parts that one record names.

    Parts lie under fresh keys before the record names them, so that a reader sees the old document
    or the new one.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def get(self, name: str) -> bytes | None:
        """Read a document; None when there is none. Raises StoreError."""
        for _ in range(_TRIES):
            if (entry := self._entry(name)) is None:
                return None
            if entry.data is not None:
                return entry.data
            if (data := self._join(entry.parts)) is not None:
                return data
            # Another was written over it meanwhile: read that one.
        raise StoreError(f"{name}: parts of it are missing; run `retrieval ingest`")

    def put(self, name: str, data: bytes) -> None:
        """Write a document whole or not at all. Raises StoreError."""
        before = self._entry(name)
        if len(data) <= _PART:
            value: dict[str, object] = {"data": base64.b64encode(data).decode()}
        else:
            value = {"parts": self._write_parts(name, data)}
        key = _key(_DOCUMENT, name)
        self._records.write(Record(key, _DOCUMENT, name, json.dumps(value)))
        # Only what the old record named: another writer's parts may not be named yet.
        if before and before.parts:
            self._records.delete(before.parts)

    def delete(self, name: str) -> None:
        """Delete a document with every part of it, a crashed writer's too. Raises StoreError."""
        self._records.delete([_key(_DOCUMENT, name)])
        if parts := self._records.keys(_DOCUMENT_PART, name):
            self._records.delete(parts)

    def names(self) -> list[str]:
        """Name every document, in ascending order. Raises StoreError."""
        return _owners(self._records.keys(_DOCUMENT), _DOCUMENT)

    def _entry(self, name: str) -> _Entry | None:
        key = _key(_DOCUMENT, name)
        text = self._records.read([key]).get(key)
        return None if text is None else _read_entry(name, text)

    def _write_parts(self, name: str, data: bytes) -> list[str]:
        fresh = uuid.uuid4().hex
        keys: list[str] = []
        for start in range(0, len(data), _PART):
            text = base64.b64encode(data[start : start + _PART]).decode()
            keys.append(f"{_DOCUMENT_PART}/{fresh}/{len(keys)}")
            self._records.write(Record(keys[-1], _DOCUMENT_PART, name, text))
        return keys

    def _join(self, keys: Sequence[str]) -> bytes | None:
        parts = []
        for key in keys:
            if (text := self._records.read([key]).get(key)) is None:
                return None
            parts.append(base64.b64decode(text))
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class SpaceRecord:
    """A vector space as it was made: the engine's name for it, and what it must be like."""

    relation: str
    fingerprint: str
    dimension: int
    metric: str


class Register:
    """Know which generations there is anything of, and under which names.

    A generation stands here before anything of it is made and until nothing of it is left.
    """

    def __init__(self, records: Records, where: str) -> None:
        self._records = records
        self._where = where

    def begin(self, generation: str, spaces: Mapping[str, SpaceRecord]) -> None:
        """Write down a generation. Raises StoreError when it is there already."""
        if self.read(generation) is not None:
            raise StoreError(f"{self._where}: generation {generation} exists")
        text = json.dumps({name: asdict(space) for name, space in spaces.items()})
        key = _key(_GENERATION, generation)
        self._records.write(Record(key, _GENERATION, generation, text))

    def read(self, generation: str) -> dict[str, SpaceRecord] | None:
        """Look a generation up: its spaces by name, or None. Raises StoreError."""
        key = _key(_GENERATION, generation)
        if (text := self._records.read([key]).get(key)) is None:
            return None
        try:
            return {name: SpaceRecord(**space) for name, space in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"{self._where}: {key} is damaged; run `retrieval ingest`") from error

    def end(self, generation: str) -> None:
        """Strike a generation out. Raises StoreError."""
        self._records.delete([_key(_GENERATION, generation)])

    def generations(self) -> list[str]:
        """Name every generation, in ascending order. Raises StoreError."""
        return _owners(self._records.keys(_GENERATION), _GENERATION)


def describe_spaces(
    relations: Mapping[str, str], spaces: Iterable[VectorSpace]
) -> dict[str, SpaceRecord]:
    """Say what each space must be like, for the register; ``relations`` are the engine's names."""
    return {
        space.name: SpaceRecord(
            relations[space.name], describe(space.fingerprint), space.fingerprint.dimension, METRIC
        )
        for space in spaces
    }


def find_space(
    where: str, generation: str, space: VectorSpace, found: Mapping[str, SpaceRecord] | None
) -> SpaceRecord:
    """Look a space up and compare it with what was written down when it was made.

    Raises:
        StoreError: there is no such generation or space, or it has another fingerprint, dimension
            or metric; the message names both sides.
    """
    if found is None:
        raise StoreError(f"{where}: there is no generation {generation}; run `retrieval ingest`")
    wanted = describe(space.fingerprint)
    if space.name not in found:
        there = "; ".join(sorted(record.fingerprint for record in found.values())) or "no vectors"
        raise StoreError(f"{where}: generation {generation} holds {there}, not {wanted}")
    record = found[space.name]
    check_same(where, space, "fingerprint", record.fingerprint, wanted)
    check_same(where, space, "dimension", record.dimension, space.fingerprint.dimension)
    check_same(where, space, "metric", record.metric, METRIC)
    return record


def check_same(where: str, space: VectorSpace, what: str, found: object, wanted: object) -> None:
    """Compare a fact about a space with what it should be. Raises StoreError naming both."""
    if found != wanted:
        raise StoreError(
            f"{where}: {space.name}: the {what} is {found}, not {wanted}; run `retrieval ingest`"
        )


def describe(fingerprint: Fingerprint) -> str:
    """Put all of a fingerprint into words.

    >>> describe(Fingerprint("hash", "r1", 8, "q: ", ""))
    "hash (8 dimensions, revision r1, prefixes 'q: ' and '')"
    """
    prefixes = f"prefixes {fingerprint.query_prefix!r} and {fingerprint.passage_prefix!r}"
    return f"{str(fingerprint)[:-1]}, {prefixes})"


def engine_name(*parts: str, separator: str = "-", longest: int = 63) -> str:
    """Make a name that every engine takes: readable, and another for all other parts.

    >>> engine_name("adherence", "documents")
    'adherence-documents-4522a40cee'
    """
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
    readable = slug(separator.join(parts), separator)
    return f"{readable[: longest - len(digest) - 1].rstrip(separator)}{separator}{digest}"


def slug(text: str, separator: str = "-") -> str:
    """Keep a text's small letters and digits."""
    return re.sub(r"[^a-z0-9]+", separator, text.lower()).strip(separator)


@dataclass(frozen=True, slots=True)
class _Entry:
    data: bytes | None
    parts: list[str]


def _read_entry(name: str, text: str) -> _Entry:
    try:
        value = json.loads(text)
        if "data" in value:
            return _Entry(base64.b64decode(value["data"]), [])
        return _Entry(None, [str(part) for part in value["parts"]])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{name}: is damaged; run `retrieval ingest`") from error


def _key(kind: str, owner: str) -> str:
    return f"{kind}/{owner}"


def _owners(keys: Iterable[str], kind: str) -> list[str]:
    return sorted(key.removeprefix(f"{kind}/") for key in keys)
