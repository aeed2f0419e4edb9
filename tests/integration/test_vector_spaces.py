"""A vendor's embedder before a local one: whatever the vendor does, the answer comes in time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.engines.breaker import FAILURES_TO_OPEN
from fakes_kb import Behaviour, FakeVoyage, voyage_error
from kb.stores.factory import open_generations
from patience import PATIENT
from running_service import MODELS, ROOT
from serve.local import build_pipeline
from serve.pipeline import HybridPipeline
from serve.schemas import RetrieveRequest, RetrieveResponse
from serve.settings import Settings, load_settings

pytestmark = pytest.mark.integration

QUESTION = "can I take ibuprofen with warfarin?"


class Served:
    """The pipeline over two spaces, voyage-3.5 and bge-small, and the vendor to be told to fail."""

    def __init__(self, vendor: FakeVoyage, pipeline: HybridPipeline, settings: Settings) -> None:
        self.vendor = vendor
        self.pipeline = pipeline
        self.settings = settings

    async def ask(self, behaviour: Behaviour | None = None) -> RetrieveResponse:
        if behaviour:
            self.vendor.script.append(behaviour)
        request = RetrieveRequest(query=QUESTION, explain=True)
        return await self.pipeline.retrieve(request, self.settings, "test")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("VOYAGE_API_KEY", "canary-key")
    cards = tmp_path / "cards"
    cards.mkdir()
    for path in (ROOT / "kb/content/en").glob("warfarin*.md"):
        shutil.copy(path, cards)
    vendor = FakeVoyage()
    with vendor.running() as url:
        settings = load_settings(
            {
                "kb_cards": cards,
                "kb_home": tmp_path / "kb",
                "embedder_models": ("voyage-3.5", "bge-small-en-v1.5"),
                "voyage_base_url": url,
                **PATIENT,
                "embedder_timeout_ms": 400,
                "reranker_max_input": 1,
            },
            environ={"MODEL_HOME": str(MODELS)},
        )
        yield Served(vendor, build_pipeline(settings), settings)


def test_the_generation_holds_both_spaces_by_preference(served: Served) -> None:
    manifest = open_generations(served.settings.store_config()).current()

    assert manifest is not None
    names = [space.fingerprint.embedder_id for space in manifest.spaces]
    assert names == ["voyage-3.5", "bge-small-en-v1.5"]
    assert {space.rows for space in manifest.spaces} == {manifest.rows}
    kinds = {(request["model"], request["input_type"]) for request in served.vendor.requests[:-1]}
    assert kinds == {("voyage-3.5", "document")}


async def test_a_healthy_vendor_answers_alone(served: Served) -> None:
    answer = await served.ask()

    assert answer.hybrid_path == "full"
    assert answer.degraded == []
    assert served.vendor.requests[-1]["input_type"] == "query"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (voyage_error(429, "slow down"), "rate_limited"),
        (voyage_error(401, "no such key"), "wrong_key"),
        (voyage_error(500, "oops"), "embedder_failed"),
        (lambda _: (200, b'{"data": []}'), "embedder_failed"),
    ],
)
async def test_a_failing_vendor_is_passed_over_for_the_local_space_with_the_reason(
    served: Served, behaviour: Behaviour, reason: str
) -> None:
    answer = await served.ask(behaviour)

    assert answer.hybrid_path == "full"
    assert [(d.stage, d.reason) for d in answer.degraded] == [("dense", reason)]
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert answer.hits[0].similarity is not None


async def test_a_silent_vendor_costs_its_own_time_and_no_more(served: Served) -> None:
    answer = await served.ask(served.vendor.hang)

    assert answer.hybrid_path == "full"
    assert [(d.stage, d.reason) for d in answer.degraded] == [("dense", "timeout")]


async def test_a_vendor_that_keeps_failing_is_not_asked_any_more(served: Served) -> None:
    for _ in range(FAILURES_TO_OPEN):
        await served.ask(voyage_error(429, "slow down"))
    asked = len(served.vendor.requests)

    answer = await served.ask()

    assert [(d.stage, d.reason) for d in answer.degraded] == [("dense", "breaker_open")]
    assert answer.hybrid_path == "full"
    assert len(served.vendor.requests) == asked


async def test_when_the_local_model_is_gone_too_the_path_is_bm25_only(
    served: Served, tmp_path: Path
) -> None:
    settings = served.settings.model_copy(update={"model_home": tmp_path / "none"})
    pipeline = build_pipeline(settings)
    served.vendor.script.append(voyage_error(429, "slow down"))
    answer = await pipeline.retrieve(RetrieveRequest(query=QUESTION), settings, "test")

    assert answer.hybrid_path == "bm25_only"
    assert [(d.stage, d.reason) for d in answer.degraded] == [("dense", "rate_limited")]
    assert answer.hits[0].card_id == "warfarin-nsaids"
