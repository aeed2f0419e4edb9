"""The files for the managed path say what the service understands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from serve.config_check import check_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def test_the_managed_configuration_is_sound_and_names_a_managed_store() -> None:
    settings, port = check_config(DEPLOY / "serve_config.managed.yaml")

    assert settings.kb_store == "qdrant"
    assert port == 8000


def test_the_rayservice_carries_the_same_configuration() -> None:
    service = yaml.safe_load((DEPLOY / "kubernetes/rayservice.yaml").read_text("utf-8"))
    managed = yaml.safe_load((DEPLOY / "serve_config.managed.yaml").read_text("utf-8"))

    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == managed


def test_one_ingest_at_a_time_runs_on_a_schedule() -> None:
    job = yaml.safe_load((DEPLOY / "kubernetes/ingest-cronjob.yaml").read_text("utf-8"))

    assert job["kind"] == "CronJob"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.yaml")), ids=lambda path: path.name)
def test_no_secret_stands_in_a_file(path: Path) -> None:
    for key, value in _entries(list(yaml.safe_load_all(path.read_text("utf-8")))):
        if isinstance(value, str) and key.upper().endswith(("_KEY", "PASSWORD", "_TOKEN")):
            assert value.startswith("${"), f"{path.name}: {key} holds a value"


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Give every key and value, however deep."""
    if isinstance(value, list):
        return [entry for item in value for entry in _entries(item)]
    if not isinstance(value, dict):
        return []
    return [
        entry for key, inner in value.items() for entry in ((str(key), inner), *_entries(inner))
    ]
