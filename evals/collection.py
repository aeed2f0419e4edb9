"""Read a test collection in BEIR layout: documents, queries, and judgments (qrels)."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from kb.errors import InputError
from kb.types import Card, Locale, Section
from serve.languages import detect_locale

Split = Literal["test", "train", "tuning-half", "reporting-half"]
"""``train`` has files of its own; the halves are those of ``test``, by a hash of the query's id."""

SPLITS: tuple[Split, ...] = get_args(Split)
_SAMPLED = 20


@dataclass(frozen=True, slots=True)
class Document:
    """What is judged. It becomes a card, and is cut into sub-chunks as cards are."""

    id: str
    title: str
    text: str
    parent: str


@dataclass(frozen=True)
class Collection:
    """Documents, the queries of one split, and the gain (0 is not relevant) of what was judged."""

    name: str
    split: Split
    documents: tuple[Document, ...]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]

    @cached_property
    def corpus_locale(self) -> Locale:
        """The documents' locale, by a sample of their texts."""
        return detect_locale(" ".join(document.text for document in self.documents[:_SAMPLED]))

    @cached_property
    def query_locale(self) -> Locale:
        """The queries' locale, by a sample of them."""
        return detect_locale(" ".join(list(self.queries.values())[:_SAMPLED]))

    def limited(self, count: int | None) -> Collection:
        """Keep ``count`` queries, the same ones each time, by a hash of their ids."""
        kept = sorted(self.queries, key=_digest)[:count]
        return replace(
            self,
            queries={query_id: self.queries[query_id] for query_id in sorted(kept)},
            qrels={query_id: self.qrels[query_id] for query_id in sorted(kept)},
        )

    def cards(self) -> list[Card]:
        """Give each document as a card."""
        return [
            Card(
                id=document.id,
                title=document.title,
                category="escalation",  # Of no matter here: no evaluation filters.
                locale=self.corpus_locale,
                drugs=(),
                sources=(),
                reviewed="",
                sections=(Section("", document.text),),
            )
            for document in self.documents
        ]


def load_collection(folder: Path, split: Split = "test") -> Collection:
    """Read a folder that holds ``corpus.jsonl``, ``queries.jsonl`` and ``qrels.tsv``.

    Each may be gzipped. Of the queries only those that were judged are kept. The layout is that of
    Thakur et al., "BEIR", NeurIPS 2021.

    Raises:
        InputError: a file is missing or not what it should be; the message names file and line.
    """
    suffix = ".train" if split == "train" else ""
    qrels = read_qrels(folder / f"qrels{suffix}.tsv")
    texts = {_text(row, "_id"): _text(row, "text") for row in _rows(folder, f"queries{suffix}")}
    if missing := sorted(qrels.keys() - texts.keys()):
        raise InputError(f"{folder}: query {missing[0]!r} is judged but not there")
    wanted = [query_id for query_id in sorted(qrels) if _in_split(query_id, split)]
    documents = tuple(
        Document(
            _text(row, "_id"),
            row.get("title") or "",
            _text(row, "text"),
            (row.get("metadata") or {}).get("parent") or row["_id"],
        )
        for row in _rows(folder, "corpus")
    )
    if len({document.id for document in documents}) < len(documents):
        raise InputError(f"{folder}: corpus.jsonl has an _id twice")
    return Collection(
        folder.name,
        split,
        documents,
        {query_id: texts[query_id] for query_id in wanted},
        {query_id: qrels[query_id] for query_id in wanted},
    )


def _in_split(query_id: str, split: Split) -> bool:
    if not split.endswith("-half"):
        return True
    return (_digest(query_id)[0] % 2 == 0) == (split == "tuning-half")


def _digest(query_id: str) -> bytes:
    return hashlib.sha256(query_id.encode()).digest()


def _rows(folder: Path, stem: str) -> Iterator[dict[str, Any]]:
    plain, zipped = folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz"
    path = plain if plain.is_file() else zipped
    if not path.is_file():
        raise InputError(f"{plain} is missing (also as .gz)")
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path == zipped
        else path.open(encoding="utf-8") as lines
    ):
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                _text(row, "_id")
            except (json.JSONDecodeError, InputError, TypeError, KeyError) as error:
                raise InputError(f"{path}:{number}: no row with an _id ({error})") from None
            yield row


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row[field]
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"row {row.get('_id')!r}: {field} must be a text")
    return value


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read judgments: gain by document id, by query id. Raises InputError naming the line."""
    if not path.is_file():
        raise InputError(f"{path} is missing")
    qrels: dict[str, dict[str, int]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file, delimiter="\t"), 1):
            if number == 1 and row and row[0] == "query-id":
                continue
            try:
                query_id, document_id, gain = row
                qrels.setdefault(query_id, {})[document_id] = int(gain)
            except ValueError:
                raise InputError(f"{path}:{number}: must be query-id, corpus-id, score") from None
    return qrels
