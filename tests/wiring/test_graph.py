"""The deployments wired together in Ray Serve's local testing mode: no cluster, no model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray import serve
from ray.serve._private.build_app import build_app as build_graph
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeDeploySchema

from fakes_kb import write_card
from patience import PATIENT
from serve.app import build_app
from serve.config_check import DEPLOYMENTS
from serve.settings import Settings


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("KB_CARDS", "KB_HOME", "MODEL_HOME"):  # The environment would win.
        monkeypatch.delenv(name, raising=False)
    cards = tmp_path / "cards"
    write_card(cards, "warfarin-nsaids", "Ibuprofen with warfarin raises bleeding.")
    write_card(cards, "metformin-alcohol", "Alcohol with metformin is a risk.")
    return {
        "kb_cards": cards,
        "kb_home": tmp_path / "kb",
        "model_home": tmp_path / "no-models",
        "embedder_models": ("bge-small-en-v1.5",),
        "generation_poll_s": 60,  # Local testing mode never ends the watch.
        **PATIENT,
    }


@pytest.fixture
def graph(places: dict[str, Any]) -> DeploymentHandle[Any]:
    return serve.run(build_app(Settings(**places)), _local_testing_mode=True)


async def test_a_query_travels_through_every_deployment_and_back(
    graph: DeploymentHandle[Any],
) -> None:
    answer = await graph.retrieve.remote({"query": "ibuprofen with warfarin"})

    assert answer["hybrid_path"] == "bm25_only"
    assert answer["hits"][0]["card_id"] == "warfarin-nsaids"
    assert answer["degraded"] == [{"stage": "dense", "reason": "no_embedder"}]


async def test_many_requests_at_once_all_get_their_own_answer(
    graph: DeploymentHandle[Any],
) -> None:
    queries = {"ibuprofen": "warfarin-nsaids", "alcohol": "metformin-alcohol"}
    asked = [query for query in queries for _ in range(8)]
    answers = await asyncio.gather(*(graph.retrieve.remote({"query": query}) for query in asked))

    assert [answer["hits"][0]["card_id"] for answer in answers] == [queries[q] for q in asked]


def test_a_misspelt_argument_of_the_builder_is_refused() -> None:
    with pytest.raises(ValidationError, match="rrf_kk"):
        Settings.model_validate({"rrf_kk": 60})


def test_the_builder_declares_its_argument_so_that_ray_validates_it() -> None:
    assert build_app.__annotations__["args"] is Settings


def test_the_configuration_file_names_the_deployments_that_the_builder_makes(
    places: dict[str, Any],
) -> None:
    text = Path(__file__).parents[2].joinpath("serve_config.yaml").read_text("utf-8")
    config = ServeDeploySchema.model_validate(yaml.safe_load(text))
    built = build_graph(build_app(Settings(**places)), name="adherence-retrieval")

    named = {deployment.name for deployment in config.applications[0].deployments}
    assert named == {deployment.name for deployment in built.deployments} == DEPLOYMENTS
