"""Sub-chunks as lines of JSON: the form in which a generation keeps its rows beside the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from kb.types import Source, SubChunk


def encode_rows(chunks: Sequence[SubChunk]) -> bytes:
    """Write a line a sub-chunk, the same bytes for the same rows."""
    encode = json.JSONEncoder(sort_keys=True).encode
    return "".join(f"{encode(_fields(chunk))}\n" for chunk in chunks).encode()


def decode_rows(data: bytes) -> tuple[SubChunk, ...]:
    """Read what `encode_rows` wrote. Raises ValueError, KeyError or TypeError on anything else."""
    return tuple(_decode(json.loads(line)) for line in data.splitlines())


def hash_rows(data: bytes) -> str:
    """Hash all that a generation is made from, embedders aside."""
    return hashlib.sha256(data).hexdigest()


def _fields(chunk: SubChunk) -> dict[str, Any]:
    """Give a row's fields by name; ``asdict`` would copy each value, at five times the cost."""
    fields = {name: getattr(chunk, name) for name in SubChunk.__slots__}
    fields["sources"] = [{n: getattr(s, n) for n in Source.__slots__} for s in chunk.sources]
    return fields


def _decode(row: dict[str, Any]) -> SubChunk:
    row["drugs"] = tuple(row["drugs"])
    row["sources"] = tuple(
        Source(s["name"], s["url"], s["licence"], tuple(s["sections"])) for s in row["sources"]
    )
    return SubChunk(**row)
