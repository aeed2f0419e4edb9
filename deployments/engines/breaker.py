"""A circuit breaker around an embedder.

Its own few lines: pybreaker 1.4 holds its lock during the call, and so lets one query in at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kb.errors import StageUnavailable

FAILURES_TO_OPEN = 3
OPEN_FOR_S = 10.0

_T = TypeVar("_T")


class Breaker:
    """Refuse calls for a while after repeated failures, then let one try (Nygard, "Release It!").

    Args:
        name: what is called, for the reason.
        clock: seconds that only grow.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0

    def call(self, work: Callable[[], _T]) -> _T:
        """Do the work, unless it failed ``FAILURES_TO_OPEN`` times on end a moment ago.

        Raises:
            StageUnavailable: the breaker is open, or the work raised it.
        """
        self._enter()
        try:
            result = work()
        except StageUnavailable:
            with self._lock:
                self._failures += 1
                self._open_until = self._clock() + OPEN_FOR_S
            raise
        with self._lock:
            self._failures = 0
        return result

    def _enter(self) -> None:
        with self._lock:
            if self._failures < FAILURES_TO_OPEN:
                return
            if (now := self._clock()) < self._open_until:
                raise StageUnavailable("dense", "breaker_open", f"{self._name} failed repeatedly")
            self._open_until = now + OPEN_FOR_S  # This one tries; the others go on waiting.
