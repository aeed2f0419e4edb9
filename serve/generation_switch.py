"""Move a running pipeline to the generation that is published, once every stage has it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from deployments.engines.memory import release_memory
from kb.errors import RetrievalError, StageUnavailable, StoreError
from kb.generations import Generations, LoadedGeneration
from serve.pipeline import HybridPipeline

logger = logging.getLogger("ray.serve.adherence_retrieval")

RETRY_AFTER_S = 30.0
"""A generation that failed to load is tried again after this: a store may have been away."""


class GenerationSwitch:
    """Look for a new generation, have both legs load it beside the old one, and change over.

    The change is one assignment: a request ends on the generation that it began on, and no request
    begins on one that a leg does not have.

    Args:
        generations: the knowledge base.
        pipeline: what changes over.
        poll_s: seconds between two looks.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        generations: Generations,
        pipeline: HybridPipeline,
        poll_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generations = generations
        self._pipeline = pipeline
        self._poll_s = poll_s
        self._clock = clock
        self._failed_at: dict[str, float] = {}
        self.settled = False
        """True once a generation was found that every stage can serve."""
        self.problem = ""
        """Why the published generation is not the served one; empty when it is."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.step()
            except Exception as error:  # Whatever it was: what is served goes on being served.
                self.problem = f"the look for a new generation failed: {type(error).__name__}"
                logger.exception("the look for a new generation failed")
            await asyncio.sleep(self._poll_s)

    async def step(self) -> None:
        """Look once, and change over when there is something new that can be served."""
        try:
            published = await asyncio.to_thread(self._generations.current_id)
            if published is None:
                raise StoreError("CURRENT is gone; run `retrieval ingest`")
            if self.settled and published == self._pipeline.generation.manifest.id:
                self.problem = ""
                return
            candidates = [published]
            if not self.settled:
                candidates = await asyncio.to_thread(self._generations.fallbacks, published)
        except StoreError as error:
            self.problem = str(error)
            return
        for generation_id in candidates:
            if await self._change_to(generation_id, published):
                return

    async def _change_to(self, generation_id: str, published: str) -> bool:
        since = self._clock() - self._failed_at.get(generation_id, -RETRY_AFTER_S)
        if since < RETRY_AFTER_S:
            return False
        try:
            loaded = await self._load(generation_id)
        except StageUnavailable as error:  # A stage has not come up: no fault of the generation.
            self.problem = f"{generation_id} waits: {error}"
            return not self.settled
        except RetrievalError as error:
            self._failed_at[generation_id] = self._clock()
            self.problem = f"{generation_id} cannot be served: {error}"
            self._pipeline.metrics.generation("failed")
            logger.warning("generation %s", self.problem)
            return False
        if loaded.manifest.id != self._pipeline.generation.manifest.id:
            self._pipeline.switch(loaded)
            await asyncio.to_thread(release_memory)
            logger.info("generation %s is served", generation_id)
        self._pipeline.metrics.generation("served")
        self.settled = True
        if generation_id == published:
            self.problem = ""
        return True

    async def _load(self, generation_id: str) -> LoadedGeneration:
        """Have it loaded here and in every replica of both legs.

        Raises:
            StoreError: it is not sound.
            StageUnavailable: a leg does not answer.
        """
        served, stages = self._pipeline.generation, self._pipeline.stages
        if served.manifest.id != generation_id:
            served = await asyncio.to_thread(self._generations.load, generation_id)
        problems = await asyncio.gather(
            stages.bm25.load(generation_id), stages.dense.load(generation_id)
        )
        for problem in filter(None, problems):
            raise StoreError(problem)
        return served
