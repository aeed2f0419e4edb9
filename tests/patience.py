"""Time limits for tests that are not about time: a busy machine may pause any process for long."""

from __future__ import annotations

from typing import Any

PATIENT: dict[str, Any] = {
    "leg_timeout_ms": 60_000,
    "deadline_ms": 60_000,
    "rerank_budget_ms": 60_000,
}
"""Settings under which nothing that works is ever late."""

PATIENT_ENVIRON = {name.upper(): str(value) for name, value in PATIENT.items()}
