"""Hand an expected failure over as a value.

Ray logs a traceback for every exception that leaves a replica. A stage that has no model would fill
the log with one a request, so a shim returns its StageUnavailable and the caller raises it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kb.errors import StageUnavailable

_P = ParamSpec("_P")
_T = TypeVar("_T")


def refuse_when_late(stage: str, deadline: float) -> None:
    """Refuse work whose time ran out in the replica's queue. Raises StageUnavailable.

    Args:
        stage: ``bm25``, ``dense`` or ``rerank``.
        deadline: in seconds since the epoch.
    """
    if time.time() >= deadline:
        raise StageUnavailable(stage, "deadline")


def failure_as_value(method: Callable[_P, _T]) -> Callable[_P, _T | StageUnavailable]:
    """Make a method return the StageUnavailable that it would raise."""

    @wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T | StageUnavailable:
        try:
            return method(*args, **kwargs)
        except StageUnavailable as failure:
            return failure

    return call
