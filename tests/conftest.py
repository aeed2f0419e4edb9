"""What several rings of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running_service import RunningService


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One real Ray Serve with real models and the shipped cards, for the whole run."""
    running = RunningService(
        tmp_path_factory.mktemp("service"),
        {
            "TRACE_EXPORTER": "file",
            "RERANK_BUDGET_MS": "20000",
            "DEADLINE_MS": "8000",
            "RERANKER_MAX_INPUT": "8",
        },
    )
    running.environ["TRACE_FILE"] = str(running.folder / "traces.jsonl")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def trace_file(service: RunningService) -> Path:
    """Where the service writes its spans."""
    return Path(service.environ["TRACE_FILE"])
