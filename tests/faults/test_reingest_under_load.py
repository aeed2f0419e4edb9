"""Two knowledge bases by turns, a hundred times, while clients ask: every answer is of one."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import psutil
import pytest

from kb.embedders.factory import choose_embedders
from kb.generations import Generations
from kb.ingest import ingest
from kb.stores.factory import StoreConfig, open_generations
from running_service import MODELS, ROOT, RunningService
from serve.settings import load_settings

pytestmark = pytest.mark.faults

REINGESTS = 100
CLIENTS = 2
SETTLED = 30
"""Re-ingests before memory is watched: allocators and caches fill first."""
GROWTH_MB = 0.3
"""Per re-ingest; a generation of these cards that were kept would be 2 MB and more."""


@pytest.fixture
def generations(service: RunningService, shipped_kb: Path) -> Iterator[Generations]:
    """The service's knowledge base; what was served before is put back afterwards."""
    service.deploy({"rerank_enabled": False, "leg_timeout_ms": 4000, "deadline_ms": 6000})
    found = open_generations(StoreConfig(service.folder / "kb"))
    before = found.current_id()
    assert before is not None
    yield found
    service.deploy({})
    kept = Path("generations") / before  # Pruned from the service's own home meanwhile.
    shutil.copytree(shipped_kb / kept, service.folder / "kb" / kept, dirs_exist_ok=True)
    found.publish(before)
    until = time.monotonic() + 60
    while service.retrieve("warfarin")["generation"] != before:
        assert time.monotonic() < until, "the shipped generation did not come back"
        time.sleep(0.2)


@dataclass
class Clients:
    """Closed-loop clients on loopback that keep what each answer held, by generation."""

    url: str
    statuses: Counter[int] = field(default_factory=Counter)
    degraded: Counter[tuple[str, str]] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    seen: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _ask(self) -> None:
        with httpx.Client(timeout=20) as client:
            while not self._stop.is_set():
                body = {"query": "ibuprofen with warfarin", "top_k": 20}
                response = client.post(f"{self.url}/v1/retrieve", json=body)
                with self._lock:
                    self._note(response)
                self._stop.wait(0.05)

    def _note(self, response: httpx.Response) -> None:
        self.statuses[response.status_code] += 1
        answer: dict[str, Any] = response.json() if response.status_code == 200 else {}
        self.paths[answer.get("hybrid_path", "")] += 1
        held = self.seen.setdefault(answer.get("generation", ""), set())
        held |= {(hit["chunk_id"], hit["passage"]) for hit in answer.get("hits", [])}
        for item in answer.get("degraded", []):
            self.degraded[item["stage"], item["reason"]] += 1


@pytest.mark.timeout(1500)
def test_every_answer_is_wholly_of_one_generation_and_memory_stays_flat(
    service: RunningService, generations: Generations, tmp_path: Path
) -> None:
    folders = [_cards(tmp_path / name, name) for name in ("alpha", "beta")]
    settings = load_settings({}, environ={"MODEL_HOME": str(MODELS)})
    embedders = choose_embedders(settings.embedder_config())
    rows: dict[str, set[tuple[str, str]]] = {}
    memory: list[dict[str, float]] = []

    with Clients(service.url) as clients:
        for turn in range(REINGESTS):
            report = ingest(folders[turn % 2], generations, embedders)
            loaded = generations.load(report.generation)
            rows[report.generation] = {(chunk.id, chunk.text) for chunk in loaded.chunks}
            memory.append(_memory(service))

    slopes = {name: _slope([sample[name] for sample in memory[SETTLED:]]) for name in memory[0]}
    print(f"answers {dict(clients.statuses)} on {dict(clients.paths)}, {dict(clients.degraded)}")
    print(f"generations answered from: {len(clients.seen)} of {REINGESTS + 1}")
    for turn in range(9, REINGESTS, 10):
        print(f"MB after {turn + 1} re-ingests: {memory[turn]}")
    print(f"MB a re-ingest: { {name: round(slope, 3) for name, slope in slopes.items()} }")
    assert set(clients.statuses) == {200}
    assert set(clients.paths) == {"rrf_only"}
    assert not clients.degraded
    assert len(clients.seen) > REINGESTS / 4
    for generation, held in clients.seen.items():
        if generation in rows:  # The first answers are of what was served before.
            assert held <= rows[generation], generation
    assert max(slopes.values()) < GROWTH_MB


def _cards(folder: Path, name: str) -> Path:
    """The drug-interaction cards, one of which says which knowledge base it is of."""
    folder.mkdir()
    for path in sorted((ROOT / "kb/content/en").glob("warfarin*.md")):
        (folder / path.name).write_bytes(path.read_bytes())
    card = folder / "warfarin-nsaids.md"
    card.write_text(f"{card.read_text('utf-8')}\nIbuprofen with warfarin: {name}.\n", "utf-8")
    return folder


def _memory(service: RunningService) -> dict[str, float]:
    """Resident megabytes of each deployment's replicas."""
    found = {}
    for name in ("Ingress", "Bm25Retriever", "DenseRetriever"):
        replicas: list[psutil.Process] = service.replicas(name)
        found[name] = round(sum(p.memory_info().rss for p in replicas) / 1e6, 1)
    return found


def _slope(samples: list[float]) -> float:
    return float(np.polyfit(range(len(samples)), samples, 1)[0])
