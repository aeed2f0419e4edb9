"""Spans, metrics and logs: what they say, and that they never say the user's words."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from fakes_serve import (
    GENERATION,
    BrokenMetrics,
    FakeReranker,
    Fault,
    Spans,
    World,
    make_client,
    make_settings,
)
from serve.telemetry import NoMetrics, set_up_tracing, span_processors

CANARY = "canary7f3a"
TRACE_ID, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class CountingMetrics(NoMetrics):
    """Remember what was counted."""

    requests: list[str] = field(default_factory=list)
    degradations: list[tuple[str, str]] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)

    def request(self, path: str) -> None:
        self.requests.append(path)

    def degraded(self, stage: str, reason: str) -> None:
        self.degradations.append((stage, reason))

    def stage(self, stage: str, milliseconds: float) -> None:
        assert milliseconds >= 0
        self.stages.append(stage)


def said_by(spans: Spans) -> str:
    """Give all that finished spans would export."""
    return "".join(span.to_json() for span in spans.all())


async def test_the_span_of_a_request_names_path_generation_and_hits() -> None:
    world = World()

    answer = await world.ask()

    attributes = world.spans.named("retrieve").attributes
    assert attributes == {
        "agent.hybrid_path": answer.hybrid_path,
        "retrieval.generation": GENERATION,
        "retrieval.hits": 3,
        "retrieval.degraded": (),
    }


async def test_every_stage_is_a_child_of_the_requests_span() -> None:
    world = World()

    await world.ask()

    request = world.spans.named("retrieve")
    assert request.parent is None
    assert request.context is not None
    stages = [span for span in world.spans.all() if span is not request]
    assert {span.name for span in stages} == {"bm25", "dense", "fuse", "rerank", "parents"}
    assert {span.parent.span_id for span in stages if span.parent} == {request.context.span_id}
    assert {span.context.trace_id for span in stages if span.context} == {request.context.trace_id}


async def test_a_stage_that_is_not_asked_has_no_span() -> None:
    world = World()

    await world.ask(hybrid=False)

    names = {span.name for span in world.spans.all()}
    assert names == {"retrieve", "dense", "fuse", "parents"}


async def test_each_stages_time_is_measured_once_and_told_to_the_caller() -> None:
    metrics = CountingMetrics()

    answer = await World(metrics=metrics).ask()

    assert sorted(metrics.stages) == sorted(set(answer.timings_ms) - {"total"})


@pytest.mark.parametrize("stage", ["bm25", "dense", "reranker"])
async def test_a_stage_that_was_given_up_on_has_its_span_and_its_time_too(stage: str) -> None:
    world = World()
    getattr(world, stage).fault = "hang"

    answer = await world.ask()

    name = "rerank" if stage == "reranker" else stage
    assert name in answer.timings_ms
    (span,) = [span for span in world.spans.all() if span.name == name]
    request = world.spans.named("retrieve")
    assert span.end_time is not None
    assert request.end_time is not None
    assert span.end_time <= request.end_time


async def test_requests_are_counted_by_path_and_degradations_by_reason() -> None:
    metrics = CountingMetrics()
    world = World(metrics=metrics)

    await world.ask()
    world.dense.fault, world.reranker.fault = "raise", "raise"
    await world.ask()
    world.dense.fault = "ok"
    await world.ask()

    assert metrics.requests == ["full", "bm25_only", "rrf_only"]
    assert metrics.degradations == [("dense", "down"), ("rerank", "down")]


async def post(world: World, **headers: str) -> httpx.Response:
    async with make_client(world) as client:
        body = {"query": f"I take {CANARY} and aspirin", "explain": True}
        return await client.post("/v1/retrieve", json=body, headers=headers)


async def test_the_callers_trace_goes_on() -> None:
    world = World()

    await post(world, traceparent=f"00-{TRACE_ID}-{CALLER}-01")

    request = world.spans.named("retrieve")
    assert request.parent is not None
    assert f"{request.parent.trace_id:032x}" == TRACE_ID
    assert f"{request.parent.span_id:016x}" == CALLER
    # Nothing of it stays behind for the next request.
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_trace_that_the_server_has_joined_already_goes_on() -> None:
    world = World()

    with world.spans.tracer.start_as_current_span("server") as server:
        await post(world, traceparent=f"00-{TRACE_ID}-{CALLER}-01")

    request = world.spans.named("retrieve")
    assert request.parent == server.get_span_context()


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{TRACE_ID}-{CALLER}", "00-0-0-00"])
async def test_a_trace_header_that_is_none_begins_a_trace(header: str) -> None:
    world = World()

    assert (await post(world, traceparent=header)).status_code == 200
    assert world.spans.named("retrieve").parent is None


def world_with(**faults: Fault) -> Callable[[], World]:
    """Say how to make a world with faults in its stages; they quote the query where they can."""

    def make() -> World:
        world = World()
        for stage, fault in faults.items():
            getattr(world, stage).fault = fault
        return world

    return make


@pytest.mark.parametrize(
    ("make_world", "status"),
    [
        (world_with(), 200),
        (world_with(bm25="empty", dense="empty"), 200),
        (world_with(reranker="crash"), 200),
        (world_with(reranker="hang"), 200),
        (world_with(bm25="crash"), 200),
        (world_with(dense="crash"), 200),
        (world_with(bm25="crash", dense="crash"), 200),
        (lambda: World(chunks=()), 200),
        (lambda: World(reranker=FakeReranker(raw=(CANARY, CANARY, CANARY))), 200),
        (lambda: World(metrics=BrokenMetrics(CANARY)), 500),
        (lambda: World(metrics=BrokenMetrics(CANARY, in_a_stage=True)), 500),
    ],
)
async def test_the_querys_words_are_in_no_span_no_log_and_no_error(
    make_world: Callable[[], World], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()

    with caplog.at_level(logging.DEBUG):
        response = await post(world)

    assert response.status_code == status
    assert CANARY not in response.text
    assert "retrieve" in {span.name for span in world.spans.all()}
    assert CANARY not in said_by(world.spans)
    assert all(not span.events for span in world.spans.all())
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    "body", [{"query": CANARY, "top_k": 0}, {"query": [CANARY]}, {"query": CANARY * 300}]
)
async def test_a_refused_query_is_in_no_log_and_no_error(
    body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    world = World()

    with caplog.at_level(logging.DEBUG):
        async with make_client(world) as client:
            response = await client.post("/v1/retrieve", json=body)

    assert response.status_code == 422
    assert CANARY not in response.text
    assert CANARY not in said_by(world.spans)
    assert CANARY not in caplog.text


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> list[TracerProvider]:
    """A process without a tracer provider, and those that are installed into it."""
    installed: list[TracerProvider] = []

    def current() -> trace.TracerProvider:
        return installed[-1] if installed else trace.ProxyTracerProvider()

    monkeypatch.setattr(trace, "get_tracer_provider", current)
    monkeypatch.setattr(trace, "set_tracer_provider", installed.append)
    return installed


def test_without_an_exporter_nothing_is_installed(provider: list[TracerProvider]) -> None:
    set_up_tracing(make_settings())

    assert provider == []


def test_a_provider_that_is_there_stays(provider: list[TracerProvider]) -> None:
    for _ in range(2):
        set_up_tracing(make_settings(trace_exporter="console"))

    assert len(provider) == 1


def test_the_file_exporter_writes_a_line_a_span(
    provider: list[TracerProvider], tmp_path: Path
) -> None:
    path = tmp_path / "traces.jsonl"

    set_up_tracing(make_settings(trace_exporter="file", trace_file=path))
    tracer = provider[0].get_tracer("test")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        pass

    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["name"] for line in lines] == ["inner", "outer"]
    assert lines[0]["resource"]["attributes"]["service.name"] == "adherence-retrieval"
    (processor,) = provider[0]._active_span_processor._span_processors
    assert isinstance(processor, SimpleSpanProcessor)
    processor.span_exporter.out.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("exporter", "count"), [("none", 0), ("console", 1)])
def test_rays_own_tracing_gets_the_processors_that_the_environment_names(
    exporter: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_EXPORTER", exporter)

    assert len(span_processors()) == count


def test_rays_own_tracing_goes_to_a_collector_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRACE_EXPORTER", raising=False)

    (processor,) = span_processors()

    assert isinstance(processor, BatchSpanProcessor)
    processor.shutdown()  # type: ignore[no-untyped-call]
