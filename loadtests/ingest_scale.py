"""Measure an ingest: from nothing, with one card more, and unchanged; each in its own process.

The knowledge base is the embedded one. The cards are copied first, since one is added to them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kb.embedders.factory import EmbedderConfig, make_embedder
from kb.embedders.vectors import normalise
from kb.errors import InputError, RetrievalError, WorkError
from kb.ingest import ingest
from kb.models import ModelStore, find_spec
from kb.protocols import Embedder
from kb.stores.factory import StoreConfig, open_generations
from kb.types import Fingerprint, Matrix, Vector

HASH = "hash"
HASH_NOTE = "hash is a stand-in for an embedder: the times hold everything but the model."

ADDED_CARD = """---
id: added-for-the-measurement
title: One card more
category: adherence-barrier
locale: en
drugs: []
sources:
  - name: Written for the measurement
    url: https://example.org/ingest-scale
    licence: CC0 1.0
reviewed: 2024-01-31
---
## A pill box
A box with a place for each day shows at a glance whether the evening dose was taken.

## A second reminder
A neighbour who rings at noon can be a better reminder than any telephone.
"""

_WORD = re.compile(r"\w+")
_DIMENSION = 384
_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class Task:
    """What a step needs to know; it crosses to the step's process."""

    cards: Path
    home: Path
    embedder: str
    models: Path
    threads: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one ingest did and took. ``disk_mb`` is the whole home, older generations included."""

    step: str
    rows: int
    embedded: int
    seconds: float
    rows_per_s: float
    peak_mb: float
    disk_mb: float


class HashEmbedder:
    """Make vectors from words alone: texts that share words are near each other.

    Each word adds or takes one at eight places that its hash names.
    """

    fingerprint = Fingerprint("hash", "1", _DIMENSION, "", "")
    languages: frozenset[str] = frozenset()

    def embed_query(self, text: str) -> Vector:
        """Embed a query, shape (384,)."""
        words = _WORD.findall(text.lower()) or [text]
        hashes = (hashlib.blake2b(w.encode(), digest_size=2 * _POSITIONS).digest() for w in words)
        numbers = np.frombuffer(b"".join(hashes), dtype="<u2")
        signs = np.where(numbers >> 15, 1.0, -1.0)
        vector = np.bincount(numbers % _DIMENSION, signs, _DIMENSION)
        return normalise(vector if vector.any() else np.ones(_DIMENSION))

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        """Embed passages, shape (len(texts), 384), in the given order."""
        return np.stack([self.embed_query(text) for text in texts])


def measure(
    cards: Path,
    home: Path | None = None,
    embedder: str = HASH,
    models: Path = Path(".models"),
    threads: int = 1,
) -> list[Measurement]:
    """Ingest three times and give a measurement of each.

    Raises:
        InputError: the cards are invalid, or the home holds something already.
        WorkError: an ingest failed.
    """
    if not cards.is_dir():
        raise InputError(f"{cards}: no such card folder")
    with tempfile.TemporaryDirectory(prefix="ingest-scale-") as temporary:
        copied = Path(temporary) / "cards"
        home = home or Path(temporary) / "kb"
        if home.exists() and any(home.iterdir()):
            raise InputError(f"{home}: is not empty; name a new folder with --kb-home")
        shutil.copytree(cards, copied)
        task = Task(copied, home, embedder, models, threads)
        results = [_apart("full", task)]
        (copied / "added-for-the-measurement.md").write_text(ADDED_CARD, "utf-8")
        return [*results, _apart("one card added", task), _apart("unchanged", task)]


def _apart(step: str, task: Task) -> Measurement:
    """Run a step in a fresh process, so that its peak of memory is its own."""
    _say(f"{step} ...")
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(run_step, step, task).result()
    except BrokenProcessPool:
        raise WorkError(f"{step}: the process was killed, maybe for want of memory") from None


def run_step(step: str, task: Task) -> Measurement:
    """Ingest once, in this process, and measure it; loading the model is not in the seconds."""
    with _sendable_errors():
        embedder = _make(task)
        generations = open_generations(StoreConfig(home=task.home))
        began = time.perf_counter()
        report = ingest(task.cards, generations, [embedder], _Tenths(step))
        seconds = time.perf_counter() - began
    return Measurement(
        step=step,
        rows=report.rows,
        embedded=report.embedded,
        seconds=round(seconds, 2),
        rows_per_s=round(report.rows / seconds, 1),
        peak_mb=round(_peak_bytes() / 1e6, 1),
        disk_mb=round(_disk_bytes(task.home) / 1e6, 1),
    )


@contextmanager
def _sendable_errors() -> Iterator[None]:
    """Turn our errors into ones that cross processes: some are not made of their message alone."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error)) from None
    except RetrievalError as error:
        raise WorkError(str(error)) from None


def _make(task: Task) -> Embedder:
    if task.embedder == HASH:
        return HashEmbedder()
    spec = find_spec(task.embedder)
    config = EmbedderConfig(
        store=ModelStore(task.models), preference=(task.embedder,), threads=task.threads
    )
    return make_embedder(spec, config, os.environ)


def _peak_bytes() -> int:
    """Give the most memory that this process has held.

    Linux lets a child begin at its parent's peak: the parent must stay the smaller one.
    """
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class _Tenths:
    """Say on stderr how far a step is, a line for each tenth."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._said = ("", 0)

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Say ``done`` of ``total``."""
        if total and (now := (doing, done * 10 // total)) != self._said:
            self._said = now
            _say(f"{self._step}: {doing} {done} of {total}")


def table(results: Sequence[Measurement]) -> str:
    """Lay the measurements out as a table for a person."""
    head = ("step", "rows", "embedded", "seconds", "rows/s", "peak MB", "disk MB")
    rows = [head, *(tuple(str(value) for value in asdict(result).values()) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code: 0 done, 1 the work failed, 2 the call is wrong."""
    parser = argparse.ArgumentParser("python -m loadtests.ingest_scale", description=__doc__)
    parser.add_argument("--cards", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--embedder", default=HASH, metavar="NAME", help=f"{HASH} or a model of the catalogue"
    )
    parser.add_argument("--kb-home", type=Path, metavar="DIR", help="an empty or new folder")
    parser.add_argument("--models", type=Path, default=Path(".models"), metavar="DIR")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements too")
    parsed = parser.parse_args(arguments)
    try:
        results = measure(
            parsed.cards, parsed.kb_home, parsed.embedder, parsed.models, parsed.threads
        )
    except RetrievalError as error:
        print(f"ingest_scale: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(f"embedder: {parsed.embedder}")
    print(table(results))
    if parsed.embedder == HASH:
        print(HASH_NOTE)
    if parsed.json:
        written = {"embedder": parsed.embedder, "steps": [asdict(result) for result in results]}
        parsed.json.write_text(json.dumps(written, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
