"""A new generation while the service runs: noticed, loaded beside the old one, changed over to."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb.generations import Generations
from kb.stores.factory import StoreConfig, open_generations
from running_service import MODELS, ROOT, RunningService
from serve.knowledge import ingest_cards
from serve.settings import Settings, load_settings

pytestmark = pytest.mark.integration

SWITCHED_WITHIN_S = 5.0
SLACK_S = 25.0  # A shared machine may stall; how long it took is printed, not asserted closer.


@pytest.fixture
def generations(service: RunningService) -> Iterator[Generations]:
    """The service's knowledge base; what was served before is served again afterwards."""
    found = open_generations(StoreConfig(service.folder / "kb"))
    before = found.current_id()
    assert before is not None
    yield found
    if found.current_id() != before:
        found.publish(before)
    _wait_for(lambda: _served(service) == {before})


def _settings(service: RunningService, cards: Path) -> Settings:
    places = {"kb_home": service.folder / "kb", "kb_cards": cards, "keep_generations": 10}
    return load_settings(places, environ={"MODEL_HOME": str(MODELS)})


def _served(service: RunningService) -> set[str]:
    """Ask often enough to meet both Ingress replicas."""
    return {_ask(service)["generation"] for _ in range(8)}


def _ask(service: RunningService, **fields: Any) -> dict[str, Any]:
    return service.retrieve("ibuprofen with warfarin", rerank=False, **fields)


def _wait_for(holds: Callable[[], bool], seconds: float = SWITCHED_WITHIN_S + SLACK_S) -> float:
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.05)
    return time.monotonic() - started


@pytest.mark.usefixtures("generations")
def test_every_replica_changes_over_without_a_restart_and_a_deleted_card_is_gone(
    service: RunningService, tmp_path: Path
) -> None:
    cards = tmp_path / "cards"
    cards.mkdir()
    for path in (ROOT / "kb/content/en").glob("*.md"):
        if path.stem not in {"warfarin-nsaids", "statin-grapefruit"}:
            (cards / path.name).write_bytes(path.read_bytes())
    names = ("Ingress", "Bm25Retriever", "DenseRetriever", "Reranker")
    before = {name: {p.pid for p in service.replicas(name)} for name in names}

    report = ingest_cards(_settings(service, cards))
    took = _wait_for(lambda: _served(service) == {report.generation})
    print(f"every replica served the new generation {took:.2f} s after it was published")

    assert report.embedded == 0
    answer = _ask(service, top_k=50, explain=True)
    assert answer["degraded"] == []
    assert "warfarin-nsaids" not in {hit["card_id"] for hit in answer["hits"]}
    assert all(hit["passage"] for hit in answer["hits"])
    gone = httpx.get(f"{service.url}/v1/cards/statin-grapefruit", timeout=5)
    assert gone.status_code == 404
    assert {name: {p.pid for p in service.replicas(name)} for name in names} == before


def test_a_rollback_is_served_too(service: RunningService, generations: Generations) -> None:
    current = generations.current_id()
    assert current is not None
    report = ingest_cards(_settings(service, ROOT / "kb/content/en"))
    _wait_for(lambda: _served(service) == {report.generation})
    generations.publish(current)
    took = _wait_for(lambda: _served(service) == {current})
    print(f"every replica served the old generation {took:.2f} s after the rollback")


@pytest.mark.parametrize("damaged", ["rows.jsonl", "manifest.json", "chroma/chroma.sqlite3"])
def test_a_damaged_generation_is_refused_with_the_reason_and_the_old_one_goes_on(
    service: RunningService, generations: Generations, tmp_path: Path, damaged: str
) -> None:
    current = generations.current_id()
    assert current is not None
    generation = _damaged_generation(service, tmp_path, damaged)
    home = service.folder / "kb"
    shutil.copytree(tmp_path / "kb/generations" / generation, home / "generations" / generation)
    (home / "CURRENT.new").write_text(generation)
    (home / "CURRENT.new").replace(home / "CURRENT")

    def told() -> bool:
        body = httpx.get(f"{service.url}/readyz", timeout=5).json()
        assert body["ready"]
        return generation in body["pings"]["generation"]["detail"]

    _wait_for(told)

    assert _served(service) == {current}
    assert _ask(service)["degraded"] == []
    generations.drop(generation)


def _damaged_generation(service: RunningService, folder: Path, damaged: str) -> str:
    """Build one in a copy of the home, where no replica loads it while it is still sound."""
    shutil.copytree(service.folder / "kb", folder / "kb")
    (folder / "cards").mkdir()
    card = ROOT / "kb/content/en/warfarin-nsaids.md"
    shutil.copy(card, folder / "cards")
    places = {"kb_home": folder / "kb", "kb_cards": folder / "cards", "keep_generations": 10}
    report = ingest_cards(load_settings(places, environ={"MODEL_HOME": str(MODELS)}))
    path = folder / "kb/generations" / report.generation / damaged
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    return report.generation


def test_spanish_and_portuguese_are_answered_in_their_locale_over_http(
    service: RunningService,
) -> None:
    for locale, query in (
        ("es-419", "¿puedo tomar ibuprofeno con warfarina?"),
        ("pt-BR", "posso tomar ibuprofeno com varfarina?"),
    ):
        answer = service.retrieve(query)

        assert answer["locale"] == locale
        assert answer["hits"][0]["card_id"] == "warfarin-nsaids"
        assert {hit["locale"] for hit in answer["hits"]} == {locale}
        assert answer["degraded"] == [{"stage": "rerank", "reason": "language_not_covered"}]
