"""Kill replicas while clients ask: the answers go on, say what is missing, and heal."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import httpx
import pytest

from running_service import RunningService

pytestmark = pytest.mark.faults

QUERY = "can I take ibuprofen with warfarin?"
CLIENTS = 4
WATCH_S = 12.0
HEALED_WITHIN_S = 90.0


@pytest.fixture(scope="module", autouse=True)
def _shipped_budget(service: RunningService) -> Iterator[None]:
    """Rerank within the shipped budget, and give a leg time while models load beside it.

    Without a bound these clients would keep both cores busy with reranking; with the shipped
    leg timeout a leg is late now and then while two replicas start, and says so.
    """
    service.deploy({"rerank_budget_ms": 150, "leg_timeout_ms": 1400})
    yield
    service.deploy({})


@dataclass
class Load:
    """Closed-loop clients on loopback; bounded in number and time."""

    service: RunningService
    answers: Counter[tuple[int, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _clients: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._clients = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join(timeout=30)

    def _ask(self) -> None:
        until = time.monotonic() + 120
        with httpx.Client(timeout=15) as client:
            while not self._stop.is_set() and time.monotonic() < until:
                body = {"query": QUERY, "deadline_ms": 1500}
                response = client.post(f"{self.service.url}/v1/retrieve", json=body)
                answer = response.json() if response.status_code == 200 else {}
                with self._lock:
                    self.answers[response.status_code, answer.get("hybrid_path", "")] += 1
                    for item in answer.get("degraded", []):
                        self.reasons[item["stage"]] += 1


@pytest.mark.parametrize(
    ("deployment", "stage", "allowed"),
    [
        ("Bm25Retriever", "bm25", {"full", "rrf_only", "dense_only"}),
        ("DenseRetriever", "dense", {"full", "rrf_only", "bm25_only"}),
        ("Reranker", "rerank", {"full", "rrf_only"}),
    ],
)
def test_a_killed_replica_costs_no_answer_only_a_path(
    service: RunningService, deployment: str, stage: str, allowed: set[str]
) -> None:
    _wait_until_full(service)
    others = {
        name: {process.pid for process in service.replicas(name)}
        for name in ("Ingress", "Bm25Retriever", "DenseRetriever", "Reranker")
        if name != deployment
    }
    with Load(service) as load:
        time.sleep(2)
        for process in service.replicas(deployment):
            process.kill()
        time.sleep(WATCH_S)

    assert {status for status, _ in load.answers} == {200}
    assert {path for _, path in load.answers} <= allowed
    assert load.reasons[stage] > 0
    _wait_until_full(service)
    for name, pids in others.items():
        assert {process.pid for process in service.replicas(name)} == pids


def _wait_until_full(service: RunningService) -> None:
    until = time.monotonic() + HEALED_WITHIN_S
    while service.retrieve(QUERY, deadline_ms=4000)["hybrid_path"] != "full":
        assert time.monotonic() < until, "full did not come back"
        time.sleep(0.5)
