"""Make a collection to tune on: Spanish sentences, and the English topics that they come from.

MedlinePlus publishes its health topics in both languages under the same name in the address, each
translated sentence by sentence. ``python -m evals.medlineplus EN.jsonl ES.jsonl OUT_DIR``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from kb.chunking import sentences

PASSAGE_SENTENCES = 3
QUERIES = 300
_SHORTEST = 60
"""Characters of a query: a shorter sentence often says too little to find anything by."""


def make(english: Path, spanish: Path, out: Path) -> int:
    """Write a corpus and a ``train`` split, and no other; give the number of queries."""
    topics = {_name(row): row for row in _rows(english)}
    translated = {_name(row): row for row in _rows(spanish)}
    corpus = [
        {"_id": name, "title": "", "text": " ".join(_first_sentences(row))}
        for name, row in sorted(topics.items())
    ]
    # The last of the sentences that the passage holds: the first often only names the topic.
    candidates = {
        name: _first_sentences(row)[-1]
        for name, row in translated.items()
        if name in topics and len(_first_sentences(row)) == PASSAGE_SENTENCES
    }
    usable = [name for name, text in candidates.items() if len(text) >= _SHORTEST]
    chosen = sorted(usable, key=lambda name: hashlib.sha256(name.encode()).digest())[:QUERIES]
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "corpus.jsonl", corpus)
    queries = [{"_id": name, "text": candidates[name]} for name in chosen]
    _write(out / "queries.train.jsonl", queries)
    lines = [f"{name}\t{name}\t1" for name in chosen]
    judged = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
    (out / "qrels.train.tsv").write_text(judged, "utf-8")
    return len(chosen)


def _first_sentences(row: dict[str, Any]) -> list[str]:
    return list(islice(sentences(row["text"]), PASSAGE_SENTENCES))


def _name(row: dict[str, Any]) -> str:
    return str(row["url"]).rpartition("/")[2].removesuffix(".html")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    print(make(*map(Path, sys.argv[1:4])), "queries")
