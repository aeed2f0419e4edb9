"""A process that forks one that ingests, and kills it: by the clock, or at a named point.

Importing takes seconds and an ingest less than one, so that this process imports once. It never
ingests itself: what it forks has Chroma's threads of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes_kb import HashEmbedder, generations_in
from kb.ingest import KEPT, ingest
from kb.stores.chroma_embedded import ChromaEmbeddedStore, ChromaEmbeddedWriter
from kb.stores.folder import FolderDocuments

POINTS: dict[str, tuple[type, str, str, str]] = {
    "before the store is made": (ChromaEmbeddedStore, "create", "before", ""),
    "with an empty store": (ChromaEmbeddedStore, "create", "after", ""),
    "after the vectors": (ChromaEmbeddedWriter, "upsert", "after", ""),
    "after the seals": (ChromaEmbeddedWriter, "finish", "after", ""),
    "before the rows": (FolderDocuments, "put", "before", "rows.jsonl"),
    "half-way through the rows": (FolderDocuments, "put", "half-way", "rows.jsonl"),
    "before the manifest": (FolderDocuments, "put", "before", "manifest.json"),
    "half-way through the manifest": (FolderDocuments, "put", "half-way", "manifest.json"),
    "before CURRENT": (FolderDocuments, "put", "before", "CURRENT"),
    "half-way through CURRENT": (FolderDocuments, "put", "half-way", "CURRENT"),
    "after CURRENT": (FolderDocuments, "put", "after", "CURRENT"),
    "in pruning, before anything is gone": (FolderDocuments, "delete", "before", "manifest.json"),
    "in pruning, after the manifest": (FolderDocuments, "delete", "after", "manifest.json"),
    "in pruning, after the vectors": (ChromaEmbeddedStore, "drop", "after", ""),
}
"""What of the store is called, when to die of it, and what its first argument ends with."""


@dataclass(frozen=True)
class End:
    """How an ingest ended: its exit code, or minus the signal; and how long it took."""

    code: int
    seconds: float


class Driver:
    """The process, as its user sees it. Private copies go into ``scratch``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ingest(
        self,
        cards: Path,
        home: Path,
        *,
        kill_after: float | None = None,
        die_at: str | None = None,
        keep: int = KEPT,
    ) -> End:
        """Ingest in a process of its own, killed after so many seconds or at a point."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "cards": str(cards),
            "home": str(home),
            "kill_after": kill_after,
            "die_at": die_at,
            "keep": keep,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return End(**json.loads(self._process.stdout.readline()))


@contextlib.contextmanager
def running_driver(scratch: Path) -> Iterator[Driver]:
    """Run the process until the block ends."""
    scratch.mkdir(exist_ok=True)
    path = os.pathsep.join(
        str(folder) for folder in (Path(__file__).parents[1], Path(__file__).parent)
    )
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": path},
    ) as process:
        yield Driver(process)
        assert process.stdin is not None
        process.stdin.close()  # It ends with its orders.


def _serve() -> None:
    for module in ("chromadb", "chromadb.config", "chromadb.api.rust", "chromadb.api.client"):
        importlib.import_module(module)
    tempfile.gettempdir()  # It tries by writing a file, which a killed process would leave.
    for line in sys.stdin:
        order = json.loads(line)
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _ingest(order)
        if order["kill_after"] is not None:
            time.sleep(order["kill_after"])
            os.kill(pid, signal.SIGKILL)  # It is ours, even when it has ended: nobody waited yet.
        _, status = os.waitpid(pid, 0)
        end = {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - start,
        }
        sys.stdout.write(json.dumps(end) + "\n")
        sys.stdout.flush()


def _ingest(order: dict[str, Any]) -> None:
    code = 1
    try:
        if order["die_at"]:
            _die_at(*POINTS[order["die_at"]])
        ingest(
            Path(order["cards"]),
            generations_in(Path(order["home"])),
            [HashEmbedder(16)],
            keep=order["keep"],
        )
        code = 0
    finally:
        os._exit(code)


def _die_at(owner: type, method: str, when: str, ending: str) -> None:
    """Make the process kill itself at the first call whose first argument ends so."""
    original: Callable[..., Any] = getattr(owner, method)

    def dying(self: Any, first: Any = "", *rest: Any, **named: Any) -> Any:
        if not str(first).endswith(ending):
            return original(self, first, *rest, **named)
        if when == "half-way":
            path = self._home / first
            path.with_name(path.name + ".new").write_bytes(rest[0][: len(rest[0]) // 2])
        if when == "after":
            original(self, *([first] if first else []), *rest, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    setattr(owner, method, dying)


if __name__ == "__main__":
    _serve()
