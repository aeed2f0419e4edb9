"""The generations that a replica has at hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from deployments.engines.memory import release_memory
from kb.errors import StageUnavailable, StoreError
from kb.generations import Generations

_T = TypeVar("_T")

HELD = 2
"""What is always held: the generation served, and the one that replicas change to or from."""
HELD_AT_MOST = 5
IN_USE_S = 10.0
"""Beyond those two a generation stays for so long after its last request, within the bound."""


class GenerationCache(Generic[_T]):
    """Load generations beside each other and keep the newest few.

    Args:
        stage: ``bm25`` or ``dense``.
        generations: where they come from.
        build: makes a stage's engine from a generation's id. Raises StoreError.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        stage: str,
        generations: Generations,
        build: Callable[[str], _T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stage = stage
        self._generations = generations
        self._build = build
        self._clock = clock
        self._engines: dict[str, _T] = {}
        self._used_at: dict[str, float] = {}
        self._loading = threading.Lock()
        self._fetching: set[str] = set()

    def load_served(self) -> None:
        """Load what is published, or the newest sound generation before it.

        Raises:
            StoreError: there is none.
        """
        generation, engine = self._generations.newest_sound(self._build)
        self._engines[generation] = engine

    def load(self, generation: str) -> str:
        """Have a generation at hand from now on; give the reason when it cannot be loaded."""
        with self._loading:
            try:
                engine = self._engines.pop(generation, None) or self._build(generation)
            except StoreError as error:
                return str(error)
            self._engines[generation] = engine  # Last, also when it was there: it is wanted now.
            self._used_at[generation] = self._clock()
            self._drop_unused()
        return ""

    def get(self, generation: str) -> _T:
        """Give the engine of a generation.

        Raises:
            StageUnavailable: it is not at hand. It is being fetched from now on: this replica
                started in the moment of a change.
        """
        engine = self._engines.get(generation)
        if engine is None:
            self._fetch(generation)
            raise StageUnavailable(self._stage, "generation_not_loaded", generation)
        self._used_at[generation] = self._clock()
        return engine

    def newest(self) -> tuple[str, _T]:
        """Give the generation that was loaded last, and its engine."""
        generation = next(reversed(self._engines))
        return generation, self._engines[generation]

    def _drop_unused(self) -> None:
        """Drop what nobody asks for any more; a request that has an engine keeps it to its end."""
        oldest_first = list(self._engines)
        for generation in oldest_first[:-HELD]:
            too_many = len(self._engines) > HELD_AT_MOST
            if too_many or self._clock() - self._used_at.get(generation, 0.0) > IN_USE_S:
                del self._engines[generation]
                self._used_at.pop(generation, None)
        release_memory()

    def _fetch(self, generation: str) -> None:
        if generation in self._fetching:
            return
        self._fetching.add(generation)

        def fetch() -> None:
            try:
                self.load(generation)
            finally:
                self._fetching.discard(generation)

        threading.Thread(target=fetch, name=f"fetch-{generation}", daemon=True).start()
