"""Each path on real models and the shipped cards, in one process: what is missing decides it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queries import QUERIES
from running_service import MODELS, ROOT, RunningService
from serve.local import build_pipeline
from serve.schemas import RetrieveRequest, RetrieveResponse
from serve.settings import Settings, load_settings

pytestmark = pytest.mark.integration

QUESTION = "can I take ibuprofen with warfarin?"
EMBEDDER = "bge-small-en-v1.5"
RERANKER = "ms-marco-MiniLM-L-12-v2"
PATIENT = {
    "rerank_budget_ms": 20_000,
    "deadline_ms": 30_000,
    "leg_timeout_ms": 10_000,
    "reranker_max_input": 8,  # As the running service; fewer pairs, the same code.
}


@pytest.fixture(scope="module")
def knowledge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped cards, embedded once."""
    home = tmp_path_factory.mktemp("kb")
    build_pipeline(_settings(home, MODELS))
    return home


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model store of our own, to take models out of."""
    for name in (EMBEDDER, RERANKER):
        shutil.copytree(MODELS / name, tmp_path / "models" / name)
    return tmp_path / "models"


def _settings(home: Path, models: Path, **others: Any) -> Settings:
    places = {"kb_home": home, "model_home": models}
    return load_settings({**PATIENT, **others}, environ={}, overrides=places)


async def _retrieve(settings: Settings, query: str = QUESTION) -> RetrieveResponse:
    return await build_pipeline(settings).retrieve(
        RetrieveRequest(query=query), settings, request_id="test"
    )


def _reasons(answer: RetrieveResponse) -> list[tuple[str, str]]:
    return [(item.stage, item.reason) for item in answer.degraded]


async def test_with_every_model_the_path_is_full(knowledge: Path) -> None:
    answer = await _retrieve(_settings(knowledge, MODELS))

    assert answer.hybrid_path == "full"
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert _reasons(answer) == []


async def test_without_the_rerankers_file_the_path_is_rrf_only(
    knowledge: Path, models: Path
) -> None:
    (models / RERANKER / "model.onnx").unlink()
    answer = await _retrieve(_settings(knowledge, models))

    assert answer.hybrid_path == "rrf_only"
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert _reasons(answer) == [("rerank", "no_model")]


async def test_with_a_damaged_reranker_the_path_is_rrf_only(knowledge: Path, models: Path) -> None:
    weights = models / RERANKER / "model.onnx"
    weights.write_bytes(weights.read_bytes()[: 1 << 20])
    answer = await _retrieve(_settings(knowledge, models))

    assert answer.hybrid_path == "rrf_only"
    assert _reasons(answer) == [("rerank", "no_model")]


async def test_without_the_embedder_of_the_knowledge_base_the_path_is_bm25_only(
    knowledge: Path, models: Path
) -> None:
    shutil.rmtree(models / EMBEDDER)
    answer = await _retrieve(_settings(knowledge, models))

    assert answer.hybrid_path == "bm25_only"
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert answer.hits[0].similarity is None
    assert _reasons(answer) == [("dense", "no_embedder")]


async def test_with_no_model_at_all_a_fresh_start_ingests_and_answers_by_bm25_only(
    tmp_path: Path,
) -> None:
    answer = await _retrieve(_settings(tmp_path / "kb", tmp_path / "no-models"))

    assert answer.hybrid_path == "bm25_only"
    assert answer.hits[0].card_id == "warfarin-nsaids"


async def test_a_knowledge_base_made_without_an_embedder_is_made_again_once_there_is_one(
    tmp_path: Path,
) -> None:
    home = tmp_path / "kb"
    before = await _retrieve(_settings(home, tmp_path / "no-models"))
    after = await _retrieve(_settings(home, MODELS))

    assert (before.hybrid_path, after.hybrid_path) == ("bm25_only", "full")


async def test_with_hybrid_switched_off_the_path_is_dense_only(knowledge: Path) -> None:
    answer = await _retrieve(_settings(knowledge, MODELS, retrieval_hybrid_enabled=False))

    assert answer.hybrid_path == "dense_only"
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert answer.hits[0].score_kind == "similarity"
    assert _reasons(answer) == []


async def test_an_empty_knowledge_base_answers_no_match_and_says_that_it_is_empty(
    tmp_path: Path,
) -> None:
    (tmp_path / "cards").mkdir()
    answer = await _retrieve(_settings(tmp_path / "kb", MODELS, kb_cards=str(tmp_path / "cards")))

    assert (answer.hybrid_path, answer.no_match_reason) == ("no_match", "kb_empty")
    assert answer.hits == []


async def test_a_word_that_no_card_has_is_no_match_when_only_words_are_compared(
    tmp_path: Path,
) -> None:
    answer = await _retrieve(_settings(tmp_path / "kb", tmp_path / "no-models"), "zzz qqq")

    assert (answer.hybrid_path, answer.no_match_reason) == ("no_match", "no_candidates")


def test_fresh_starts_and_the_service_give_byte_identical_hits_for_fifty_queries(
    knowledge: Path, service: RunningService
) -> None:
    first = _hits_of_a_fresh_process(knowledge, hash_seed="0")
    second = _hits_of_a_fresh_process(knowledge, hash_seed="1")
    served = [
        json.dumps(service.retrieve(query, deadline_ms=30_000)["hits"], sort_keys=True)
        for query in QUERIES
    ]

    assert first == second
    assert served == first


def _hits_of_a_fresh_process(knowledge: Path, hash_seed: str) -> list[str]:
    """Ask all queries in a new interpreter; give each answer's hits as JSON."""
    script = f"""
import asyncio, json, sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from queries import QUERIES
from serve.local import build_pipeline
from serve.schemas import RetrieveRequest
from serve.settings import load_settings
settings = load_settings({PATIENT!r}, environ={{}}, overrides={{
    "kb_home": {str(knowledge)!r}, "model_home": {str(MODELS)!r}}})
pipeline = build_pipeline(settings)
async def main():
    for query in QUERIES:
        answer = await pipeline.retrieve(RetrieveRequest(query=query), settings, "test")
        hits = [hit.model_dump(mode="json") for hit in answer.hits]
        print(json.dumps(hits, sort_keys=True))
asyncio.run(main())
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return result.stdout.splitlines()
