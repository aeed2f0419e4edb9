"""The Ingress deployment: handles behind the pipeline's protocols, nothing more."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter, Histogram

from kb.errors import StageUnavailable
from kb.stores.factory import open_generations
from serve.adapters import DenseAdapter, LexicalAdapter, RerankAdapter
from serve.api import Backend, create_api
from serve.calibration import load_calibration
from serve.generation_switch import GenerationSwitch
from serve.pipeline import HybridPipeline
from serve.schemas import RetrieveRequest
from serve.settings import Settings, change_live
from serve.stages import Stages
from serve.telemetry import Telemetry, set_up_tracing

LOAD_TIMEOUT_S = 600.0
"""For a replica to load a generation: a large one's lexical index takes its time."""
_STAGE_BOUNDARIES_MS = [0.5, 1, 2, 5, 10, 20, 50, 75, 100, 125, 150, 200, 300, 500, 1000, 2000]


class HandleCaller:
    """Call a stage on one of its replicas; drop the call when the caller stops waiting."""

    def __init__(self, stage: str, handle: DeploymentHandle[Any]) -> None:
        self._stage = stage
        self._handle = handle

    async def __call__(self, method: str, *args: Any) -> Any:
        """Give what the method returns. Raises StageUnavailable when no replica can answer."""
        response = getattr(self._handle, method).remote(*args)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except BackPressureError:
            raise StageUnavailable(self._stage, "overloaded") from None
        except RayActorError:
            raise StageUnavailable(self._stage, "replica_died") from None
        except RayTaskError as error:
            # The traceback is in the replica's log; only the kind of error goes on from here.
            raise StageUnavailable(self._stage, "failed", type(error.cause).__name__) from None
        except (RayError, RayServeException) as error:
            raise StageUnavailable(self._stage, "unavailable", type(error).__name__) from None

    async def everywhere(self, method: str, *args: Any) -> list[Any]:
        """Call every replica there is; one that dies meanwhile is left out.

        Raises:
            StageUnavailable: none answers, or not in time.
        """
        response = self._handle.broadcast(method, *args)
        try:
            answers = await response.results_async(timeout_s=LOAD_TIMEOUT_S, return_exceptions=True)
        except TimeoutError:
            raise StageUnavailable(self._stage, "timeout") from None
        sound = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not sound:
            raise StageUnavailable(self._stage, "no_replica")
        return sound


class RayMetrics:
    """Count with Ray, which exports for Prometheus."""

    def __init__(self) -> None:
        self._requests = Counter(
            "adherence_requests", "Answered requests by path.", tag_keys=("path",)
        )
        self._degraded = Counter(
            "adherence_degraded",
            "Stages that did not run as configured.",
            tag_keys=("stage", "reason"),
        )
        self._generations = Counter(
            "adherence_generations", "Changes of generation by outcome.", tag_keys=("outcome",)
        )
        self._stages = Histogram(
            "adherence_stage_ms",
            "Duration of a stage as the ingress sees it, in milliseconds.",
            boundaries=_STAGE_BOUNDARIES_MS,
            tag_keys=("stage",),
        )

    def request(self, path: str) -> None:
        """Count an answered request by its path."""
        self._requests.inc(tags={"path": path})

    def degraded(self, stage: str, reason: str) -> None:
        """Count a stage that did not run as configured."""
        self._degraded.inc(tags={"stage": stage, "reason": reason})

    def stage(self, stage: str, milliseconds: float) -> None:
        """Record how long a stage took."""
        self._stages.observe(milliseconds, tags={"stage": stage})

    def generation(self, outcome: str) -> None:
        """Count a change of generation: ``served``, or ``failed`` to load."""
        self._generations.inc(tags={"outcome": outcome})


# The argument-less form takes the application that `__serve_build_asgi_app__` gives once the
# handles exist, so that the API stays an ordinary FastAPI factory, testable without Ray.
@serve.ingress()
class Ingress:
    """Serve the API over the pipeline."""

    def __init__(
        self,
        settings: Settings,
        bm25: DeploymentHandle[Any],
        dense: DeploymentHandle[Any],
        reranker: DeploymentHandle[Any],
    ) -> None:
        set_up_tracing(settings)
        self._at_start = self._settings = settings
        generations = open_generations(settings.store_config())
        _, loaded = generations.newest_sound(generations.load)
        stages = Stages(
            LexicalAdapter(HandleCaller("bm25", bm25)),
            DenseAdapter(HandleCaller("dense", dense)),
            RerankAdapter(HandleCaller("rerank", reranker)),
        )
        calibration = load_calibration(settings.calibration_file)
        self._pipeline = HybridPipeline(
            stages, loaded, Telemetry(RayMetrics()), calibration=calibration
        )
        self._pipeline.warm_up()
        self._switch = GenerationSwitch(generations, self._pipeline, settings.generation_poll_s)

    def reconfigure(self, user_config: dict[str, Any] | None) -> None:
        """Apply live settings on top of those at the start.

        Raises:
            SettingsError: a name is unknown, or cannot change while serving.
        """
        self._settings = change_live(self._at_start, user_config or {})

    async def retrieve(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer an application of the same cluster as ``POST /v1/retrieve`` would, without HTTP.

        Raises:
            pydantic.ValidationError: the body is not a request.
        """
        request = RetrieveRequest.model_validate(body)
        answer = await self._pipeline.retrieve(request, self._settings, uuid.uuid4().hex)
        return answer.model_dump(mode="json")

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Give Ray Serve the application."""
        return create_api(Backend(self._pipeline, lambda: self._settings, self._switch))
