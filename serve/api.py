"""The HTTP API: routes over a pipeline, and the one table from errors to status codes."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from kb.types import SubChunk
from serve.analysis import TextAnalysis
from serve.generation_switch import GenerationSwitch
from serve.languages import DEFAULT_LOCALE, match_locale
from serve.limits import BodyLimit
from serve.pipeline import HybridPipeline
from serve.schemas import (
    AnalyzeRequest,
    AnalyzeResponse,
    CardBody,
    Ping,
    Problem,
    Readiness,
    RetrieveRequest,
    RetrieveResponse,
    SectionBody,
    SourceBody,
)
from serve.settings import Settings

DESCRIPTION = (
    "Knowledge-base cards that ground an agent for medication adherence. A reference "
    "implementation on public-domain and synthetic content; not a medical device."
)

logger = logging.getLogger("ray.serve.adherence_retrieval")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELD = re.compile(r"[a-z_]{1,40}")

_TITLES = {
    400: "Malformed request",
    404: "Not found",
    405: "Method not allowed",
    413: "Body too large",
    415: "Unsupported media type",
    422: "Invalid request",
    500: "Internal error",
}


class Backend:
    """What the API needs.

    Args:
        pipeline: answers.
        settings: gives the settings of the moment; they change live.
        switch: moves the pipeline to what is published; None where nothing ever changes.
    """

    def __init__(
        self,
        pipeline: HybridPipeline,
        settings: Callable[[], Settings],
        switch: GenerationSwitch | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.settings = settings
        self.switch = switch

    def generation_ping(self) -> Ping:
        """Say which generation is served and, if it is not the published one, why."""
        manifest = self.pipeline.generation.manifest
        detail = f"{manifest.id}, {manifest.rows} rows"
        if self.switch is None:
            return Ping(ok=True, detail=detail)
        problem = f"; {self.switch.problem}" if self.switch.problem else ""
        return Ping(ok=self.switch.settled, detail=detail + problem)


def create_api(backend: Backend) -> FastAPI:
    """Build the ASGI application."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(backend.switch.run()) if backend.switch else None
        yield
        if watching:
            watching.cancel()

    api = FastAPI(
        title="Adherence retrieval", version="1", description=DESCRIPTION, lifespan=lifespan
    )
    api.add_middleware(BodyLimit)
    api.add_middleware(_LastResort)
    _handle_errors(api)
    _add_retrieval(api, backend)
    _add_operations(api, backend)
    return api


def _add_retrieval(api: FastAPI, backend: Backend) -> None:
    @api.post("/v1/retrieve", responses={422: {"model": Problem}})
    async def retrieve(body: RetrieveRequest, request: Request) -> RetrieveResponse:
        """Find the cards that ground a reply to the user's turn."""
        request_id = _request_id(request)
        token = _join_trace(request)
        try:
            return await backend.pipeline.retrieve(body, backend.settings(), request_id)
        finally:
            if token is not None:
                otel_context.detach(token)

    analysis = TextAnalysis()

    @api.get("/v1/analyze", responses={422: {"model": Problem}})
    async def analyze(asked: Annotated[AnalyzeRequest, Query()]) -> AnalyzeResponse:
        """Give the tokens that the lexical leg makes of a text."""
        config = backend.settings().lexical_config()
        generation = backend.pipeline.generation
        # In a thread: what a query's drug names are looked up in is gathered at the first call.
        return await asyncio.to_thread(analysis, asked, config, generation)

    @api.get("/v1/cards/{card_id}", responses={404: {"model": Problem}})
    async def card(
        card_id: Annotated[str, Path(max_length=80)],
        locale: Annotated[str | None, Query(max_length=35)] = None,
    ) -> CardBody:
        """Give a whole card, in the locale asked for or else in the one it has."""
        wanted = (match_locale(locale) if locale else None) or DEFAULT_LOCALE
        chunks = [c for c in backend.pipeline.generation.chunks if c.card_id == card_id and c.shown]
        if not chunks:
            raise HTTPException(404, "no card has this id")
        locales = {chunk.locale for chunk in chunks}
        chosen = wanted if wanted in locales else min(locales)
        generation = backend.pipeline.generation.manifest.id
        return _card_body([c for c in chunks if c.locale == chosen], generation)


def _add_operations(api: FastAPI, backend: Backend) -> None:
    @api.get("/v1/info")
    async def info() -> dict[str, Any]:
        """Give the settings in force, the stages and the generation. Holds no secret."""
        manifest = backend.pipeline.generation.manifest
        stages = await backend.pipeline.stages.statuses()
        return {
            "about": DESCRIPTION,
            "settings": backend.settings().public(),
            "stages": {name: status.detail for name, status in stages.items()},
            "generation": {
                "id": manifest.id,
                "rows": manifest.rows,
                "spaces": [
                    {"embedder": str(space.fingerprint), "rows": space.rows}
                    for space in manifest.spaces
                ],
            },
        }

    @api.get("/livez")
    async def livez() -> dict[str, bool]:
        """Say that the process answers."""
        return {"live": True}

    @api.get("/readyz", responses={503: {"model": Readiness}})
    async def readyz() -> JSONResponse:
        """Ask every stage; 503 until all have loaded."""
        stages = await backend.pipeline.stages.statuses()
        pings = {name: Ping(ok=s.ok, detail=s.detail) for name, s in stages.items()}
        pings["generation"] = backend.generation_ping()
        readiness = Readiness(ready=all(ping.ok for ping in pings.values()), pings=pings)
        return JSONResponse(readiness.model_dump(), 200 if readiness.ready else 503)


def _handle_errors(api: FastAPI) -> None:
    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        malformed = any(item["type"] == "json_invalid" for item in error.errors())
        return _problem(request, 400 if malformed else 422, _describe(error))

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return _problem(request, error.status_code, str(error.detail), error.headers)


class _LastResort:
    """Answer 500 to what nothing else caught, and log where it was: never its message.

    Starlette's own handler raises on, and the server then logs the message, which may quote the
    query.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            request = Request(scope)
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error(  # noqa: TRY400  # The traceback that it would add ends with the message.
                "request %s failed: %s\n%s", _request_id(request), type(error).__name__, frames
            )
            problem = _problem(request, 500, "the request failed; its id finds it in the log")
            await problem(scope, receive, send)


def _problem(
    request: Request, status: int, detail: str, headers: Any | None = None
) -> JSONResponse:
    body = Problem(
        title=_TITLES.get(status, "Error"),
        status=status,
        detail=detail,
        request_id=_request_id(request),
    )
    return JSONResponse(body.model_dump(), status, headers, media_type="application/problem+json")


def _describe(error: RequestValidationError) -> str:
    """Name the fields and what is wrong with them, never the values.

    A field's name comes from the caller too, where it is unknown: it is repeated only when it
    looks like a name.
    """
    parts = []
    for item in error.errors()[:5]:
        names = [str(part) for part in item["loc"] if part != "body"]
        shown = ".".join(name if _FIELD.fullmatch(name) else "?" for name in names)
        message = "is not a known field" if item["type"] == "extra_forbidden" else item["msg"]
        parts.append(f"{shown or 'body'}: {message}")
    return "; ".join(parts)


def _request_id(request: Request) -> str:
    """Take the caller's ``X-Request-ID`` when it is a plain one, or make one and keep it."""
    found: str | None = getattr(request.state, "request_id", None)
    if found is None:
        given = request.headers.get("x-request-id", "")
        found = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        request.state.request_id = found
    return found


def _join_trace(request: Request) -> Any | None:
    """Continue the caller's trace, unless the server has already."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    return otel_context.attach(propagate.extract(dict(request.headers)))


def _card_body(chunks: list[SubChunk], generation: str) -> CardBody:
    chunks = sorted(chunks, key=lambda chunk: chunk.ordinal)
    sections: dict[str, list[str]] = {}
    sources: dict[tuple[str, str], SourceBody] = {}
    for chunk in chunks:
        sections.setdefault(chunk.section, []).append(chunk.text)
        for source in chunk.sources:
            sources[source.name, source.url] = SourceBody(
                name=source.name, url=source.url, licence=source.licence
            )
    first = chunks[0]
    return CardBody(
        card_id=first.card_id,
        title=first.title,
        category=first.category,
        locale=first.locale,
        drugs=list(first.drugs),
        sections=[SectionBody(heading=h, text=" ".join(texts)) for h, texts in sections.items()],
        sources=list(sources.values()),
        generation=generation,
    )
