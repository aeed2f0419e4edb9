"""Spans and metrics. Neither ever holds the user's words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from opentelemetry import trace
from opentelemetry.trace import Span, Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from serve.settings import Settings

SERVICE_NAME = "adherence-retrieval"


class Metrics(Protocol):
    """What is counted."""

    def request(self, path: str) -> None:
        """Count an answered request by its path."""

    def degraded(self, stage: str, reason: str) -> None:
        """Count a stage that did not run as configured."""

    def stage(self, stage: str, milliseconds: float) -> None:
        """Record how long a stage took."""

    def generation(self, outcome: str) -> None:
        """Count a change of generation: ``served``, or ``failed`` to load."""


class NoMetrics:
    """Count nothing: the pipeline outside Ray."""

    def request(self, path: str) -> None:
        """Ignore."""

    def degraded(self, stage: str, reason: str) -> None:
        """Ignore."""

    def stage(self, stage: str, milliseconds: float) -> None:
        """Ignore."""

    def generation(self, outcome: str) -> None:
        """Ignore."""


class Telemetry:
    """Open a span around each stage of a request and keep its duration."""

    def __init__(self, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self.metrics = metrics
        self._tracer = tracer or trace.get_tracer(SERVICE_NAME)

    @contextmanager
    def request_span(self) -> Iterator[Span]:
        """Open the span of one request; the caller sets ``agent.hybrid_path`` on it."""
        with self._tracer.start_as_current_span(
            "retrieve",
            # A message of an exception could quote the query.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    @contextmanager
    def stage(self, name: str, timings_ms: dict[str, float]) -> Iterator[Span]:
        """Open a child span for a stage and put its duration into ``timings_ms``."""
        started = perf_counter()
        with self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            finally:
                elapsed = (perf_counter() - started) * 1000
                timings_ms[name] = round(elapsed, 2)
                self.metrics.stage(name, elapsed)


def set_up_tracing(settings: Settings) -> None:
    """Install a tracer provider for the exporter that the settings name.

    Does nothing when there is one already: Ray Serve makes its own when it traces.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    if settings.trace_exporter == "none" or isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE_NAME}))
    provider.add_span_processor(_processor(settings))
    trace.set_tracer_provider(provider)


def span_processors() -> list[SpanProcessor]:
    """Make the processors for Ray Serve's own tracing.

    Named by ``RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH=serve.telemetry:span_processors``, which must
    be set before Ray starts so that the proxy's span is in the trace too.
    """
    from serve.settings import load_settings

    settings = load_settings({"trace_exporter": os.environ.get("TRACE_EXPORTER", "otlp")})
    return [_processor(settings)] if settings.trace_exporter != "none" else []


def _processor(settings: Settings) -> SpanProcessor:
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SimpleSpanProcessor,
    )

    if settings.trace_exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return BatchSpanProcessor(OTLPSpanExporter())
    if settings.trace_exporter == "console":
        return SimpleSpanProcessor(ConsoleSpanExporter())
    # Each replica appends whole lines to the same file; it is closed when the process ends.
    out = settings.trace_file.open("a", encoding="utf-8")
    return SimpleSpanProcessor(
        ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
    )
