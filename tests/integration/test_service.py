"""The service as its users meet it: real Ray Serve, real models, the shipped cards, over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from running_service import RunningService

pytestmark = pytest.mark.integration

CANARY = "zebrafish-canary-7f3a"


def test_the_readme_question_finds_the_warfarin_nsaid_card_on_the_full_path(
    service: RunningService,
) -> None:
    answer = service.retrieve("can I take ibuprofen with warfarin?")

    assert answer["hybrid_path"] == "full"
    assert answer["hits"][0]["card_id"] == "warfarin-nsaids"
    assert answer["degraded"] == []
    assert answer["rerank"]["scored"] == answer["rerank"]["window"] == 8


@pytest.mark.parametrize(
    ("query", "card_id"),
    [
        ("levothyroxine", "levothyroxine-calcium-iron"),  # A drug's name alone.
        ("warfarin 2.5 mg tablet", "warfarin-dosing-strengths"),  # A dose with a decimal.
        ("my lips and face are puffing up", "angioedema-ace-inhibitor"),
    ],
)
def test_names_doses_and_paraphrases_find_their_card_first(
    service: RunningService, query: str, card_id: str
) -> None:
    answer = service.retrieve(query)

    assert answer["hybrid_path"] == "full"
    assert answer["hits"][0]["card_id"] == card_id


def test_a_paraphrase_without_a_shared_word_is_found_by_meaning(service: RunningService) -> None:
    answer = service.retrieve("it bankrupts us", locale="en", explain=True)

    assert answer["hits"][0]["card_id"] == "cost-of-medicines"
    assert answer["hits"][0]["evidence"]["bm25"] is None


def test_an_off_topic_question_says_how_unsure_it_is_and_is_refused_below_a_floor(
    service: RunningService,
) -> None:
    query = "which planet has the most moons"
    unsure = service.retrieve(query)
    refused = service.retrieve(query, min_similarity=0.65)

    assert all(hit["score"] < 0.05 for hit in unsure["hits"] if hit["score_kind"] == "rerank")
    assert refused["hits"] == []
    assert refused["hybrid_path"] == "no_match"
    assert refused["no_match_reason"] == "below_min_similarity"


def test_every_hit_of_the_full_path_has_a_similarity_also_those_of_the_lexical_leg(
    service: RunningService,
) -> None:
    answer = service.retrieve("warfarin INR", top_k=5, explain=True)

    assert any(hit["evidence"]["dense"]["rank"] is None for hit in answer["hits"])
    assert all(hit["similarity"] is not None for hit in answer["hits"])


def test_filters_hold_on_both_legs(service: RunningService) -> None:
    answer = service.retrieve("warfarin bleeding", filters={"category": ["escalation"]}, top_k=20)

    assert {hit["category"] for hit in answer["hits"]} == {"escalation"}


def test_a_spanish_question_is_not_reranked_by_the_english_model_and_the_answer_says_so(
    service: RunningService,
) -> None:
    answer = service.retrieve("¿puedo tomar ibuprofeno si uso warfarina?", locale="es-MX")

    assert answer["hybrid_path"] == "rrf_only"
    assert answer["locale"] == "es-419"
    assert {"stage": "rerank", "reason": "language_not_covered"} in answer["degraded"]


def test_a_card_is_read_whole(service: RunningService) -> None:
    card = httpx.get(f"{service.url}/v1/cards/warfarin-nsaids", timeout=5).json()

    assert card["title"].startswith("Warfarin and NSAID")
    assert len(card["sections"]) >= 3
    assert all(source["url"].startswith("https://") for source in card["sources"])


def test_info_and_readiness_name_models_and_generation(service: RunningService) -> None:
    info = httpx.get(f"{service.url}/v1/info", timeout=5).json()
    ready = httpx.get(f"{service.url}/readyz", timeout=5).json()

    assert info["stages"]["reranker"] == "ms-marco-MiniLM-L-12-v2"
    spaces = [space["embedder"].partition(" ")[0] for space in info["generation"]["spaces"]]
    assert spaces == ["bge-small-en-v1.5", "multilingual-e5-small"]
    assert set(ready["pings"]) == {"bm25", "dense", "reranker", "generation"}


def test_the_service_listens_for_http_on_loopback_only(service: RunningService) -> None:
    sockets = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    listening = {c.laddr.ip for c in sockets if c.laddr and c.laddr.port == service.port}
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"query":',
        b'{"query": "\xff\xfe"}',
        b'{"query": "a\\ud83d"}',
        b"[]",
        b"null",
        b"",
        b"[" * 50_000,
        b'{"query": "' + CANARY.encode() + b'", "top_k": 0}',
        b'{"query": "' + CANARY.encode() + b'", "top_kk": 3}',
        b'{"query": "   "}',
        b'{"query": "' + b"x" * 70_000 + b'"}',
    ],
)
def test_a_malformed_body_is_the_callers_error_and_is_not_repeated(
    service: RunningService, body: bytes
) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{service.url}/v1/retrieve", content=body, headers=headers, timeout=10)

    assert response.status_code in {400, 413, 415, 422}
    assert response.headers["content-type"] == "application/problem+json"
    assert CANARY not in response.text


def test_the_callers_trace_holds_the_request_its_stages_and_the_path(
    service: RunningService, trace_file: Path
) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    body = {"query": "can I take ibuprofen with warfarin?"}
    httpx.post(f"{service.url}/v1/retrieve", json=body, headers=headers, timeout=15)

    def spans() -> list[dict[str, Any]]:
        lines = trace_file.read_text("utf-8").splitlines()
        return [span for span in map(json.loads, lines) if trace_id in span["context"]["trace_id"]]

    _wait_for(lambda: any(span["name"] == "retrieve" for span in spans()))
    found = {span["name"]: span for span in spans()}
    request = found["retrieve"]
    assert request["attributes"]["agent.hybrid_path"] == "full"
    for stage in ("bm25", "dense", "fuse", "rerank", "parents"):
        assert found[stage]["parent_id"] == request["context"]["span_id"]


def test_the_users_words_are_in_no_log_and_no_span(
    service: RunningService, trace_file: Path
) -> None:
    service.retrieve(f"can I take {CANARY} with warfarin?")
    httpx.post(f"{service.url}/v1/retrieve", json={"query": CANARY, "top_k": "x"}, timeout=10)

    session = service.ray_logs()
    logs = [service.log, trace_file, *(path for path in session.rglob("*") if path.is_file())]
    holding = [str(path) for path in logs if CANARY.encode() in path.read_bytes()]
    assert holding == []


def test_one_switch_returns_to_dense_only_and_back_without_a_restart(
    service: RunningService,
) -> None:
    query = "can I take ibuprofen with warfarin?"
    before = {process.pid for process in service.replicas("Ingress")}

    one_pair = {"reranker_max_input": 1}  # The switch is what is waited for, not the reranker.
    service.deploy({"retrieval_hybrid_enabled": False, **one_pair})
    _wait_for(lambda: _paths(service, query) == {"dense_only"})
    service.deploy(one_pair)
    _wait_for(lambda: _paths(service, query) == {"full"})
    service.deploy({})

    assert {process.pid for process in service.replicas("Ingress")} == before


def _paths(service: RunningService, query: str) -> set[str]:
    return {service.retrieve(query)["hybrid_path"] for _ in range(6)}


def _wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.5)
