"""What several rings of tests share."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from patience import PATIENT_ENVIRON
from running_service import BIN, MODELS, ROOT, RunningService


@pytest.fixture(scope="session")
def shipped_kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped cards in all three languages and both vector spaces; copy it, never write."""
    home = tmp_path_factory.mktemp("shipped") / "kb"
    subprocess.run(
        [BIN / "retrieval", "ingest", "--kb-home", home, "--models", MODELS],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=900,
    )
    return home


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, shipped_kb: Path) -> Iterator[RunningService]:
    """One real Ray Serve with real models and the shipped cards, for the whole run."""
    folder = tmp_path_factory.mktemp("service")
    shutil.copytree(shipped_kb, folder / "kb")
    running = RunningService(
        folder,
        {
            **PATIENT_ENVIRON,
            "TRACE_EXPORTER": "file",
            "RERANKER_MAX_INPUT": "8",
        },
    )
    running.environ["TRACE_FILE"] = str(running.folder / "traces.jsonl")
    try:
        running.start()
        yield running
    finally:  # Also when it did not become ready: nothing of it outlives the tests.
        running.stop()


@pytest.fixture(scope="session")
def trace_file(service: RunningService) -> Path:
    """Where the service writes its spans."""
    return Path(service.environ["TRACE_FILE"])
