"""The wire contract: requests, responses and problem details."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StringConstraints
from pydantic.functional_validators import AfterValidator

from kb.analysis.lexical import AnalyzerName
from kb.types import Category, Locale
from serve.candidates import ScoreKind

MAX_QUERY_CHARACTERS = 2000
MAX_TOP_K = 50
DEFAULT_TOP_K = 5

HybridPath = Literal["full", "rrf_only", "dense_only", "bm25_only", "no_match"]
NoMatchReason = Literal["kb_empty", "no_candidates", "filtered_out", "below_min_similarity"]


def _clean(text: str) -> str:
    """Drop NUL, which no store takes; a lone surrogate never passes JSON validation."""
    text = text.replace("\x00", "")
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Query = Annotated[str, StringConstraints(max_length=MAX_QUERY_CHARACTERS), AfterValidator(_clean)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FilterFields(_Strict):
    """Restrict the hits: any of the values of a field, all of the named fields."""

    category: list[Category] = Field(default=[], max_length=10)
    drugs: list[Annotated[str, StringConstraints(max_length=100)]] = Field(
        default=[], max_length=50
    )


class RetrieveRequest(_Strict):
    """Ask for the cards that ground a reply to the user's turn. Only ``query`` is needed."""

    query: Query = Field(examples=["can I take ibuprofen with warfarin?"])
    top_k: StrictInt = Field(DEFAULT_TOP_K, ge=1, le=MAX_TOP_K)
    locale: Annotated[str, StringConstraints(max_length=35)] | None = Field(
        None, description="BCP 47 tag; detected when absent."
    )
    filters: FilterFields = FilterFields()
    hybrid: StrictBool = Field(True, description="False asks for the dense leg alone.")
    rerank: StrictBool = True
    min_similarity: float | None = Field(None, ge=-1, le=1, strict=True)
    deadline_ms: StrictInt | None = Field(None, ge=50, le=60_000)
    explain: StrictBool = Field(False, description="Adds the evidence to every hit.")


class SourceBody(_Strict):
    """Where a card's claims come from."""

    name: str
    url: str
    licence: str


class Bm25Evidence(_Strict):
    """The lexical leg's view of a hit."""

    rank: int
    score: float


class DenseEvidence(_Strict):
    """The dense leg's view of a hit; ``rank`` is null where only its vector was compared."""

    rank: int | None
    similarity: float


class Evidence(_Strict):
    """What each stage said of a hit; null where it did not see it."""

    bm25: Bm25Evidence | None
    dense: DenseEvidence | None
    fused_score: float | None
    rerank_score: float | None
    relevance: float | None = Field(
        description="Probability that the card helps, as fitted on judged queries; null without."
    )
    calibrated: bool = Field(description="Whether a fitted curve fits this hit's evidence.")
    asked_as: str | None = Field(
        description="The card's own example of a turn that found it; null if its text did."
    )


class HitBody(_Strict):
    """One card, with its best passage."""

    rank: int
    card_id: str
    chunk_id: str
    title: str
    category: Category
    locale: Locale
    passage: str
    score: float = Field(description="Comparable only with scores of the same kind.")
    score_kind: ScoreKind
    similarity: float | None = Field(description="Cosine to the query; null if it is not known.")
    sources: list[SourceBody]
    evidence: Evidence | None = None


class Degradation(_Strict):
    """A stage that did not run as configured, and why."""

    stage: Literal["bm25", "dense", "rerank"]
    reason: str


class RerankBody(_Strict):
    """What the reranker did: candidates it was given, and how many it scored in time."""

    model: str
    window: int
    scored: int


class RetrieveResponse(_Strict):
    """The answer: cards, the path taken, and what did not run."""

    hits: list[HitBody]
    hybrid_path: HybridPath
    degraded: list[Degradation]
    no_match_reason: NoMatchReason | None
    locale: Locale
    generation: str
    rerank: RerankBody | None
    timings_ms: dict[str, float]
    request_id: str


class AnalyzeRequest(_Strict):
    """Ask which tokens the lexical leg makes of a text."""

    text: Query = Field(examples=["warfarin 2.5mg"])
    locale: Annotated[str, StringConstraints(max_length=35)] | None = Field(
        None, description="BCP 47 tag; detected when absent."
    )


class AnalyzeResponse(_Strict):
    """The tokens of a text."""

    locale: Locale
    analyzer: AnalyzerName
    tokens: list[str] = Field(description="In the order of the text.")
    added: list[str] = Field(description="By expansion with drug names; empty when it is off.")


class SectionBody(_Strict):
    """A section of a card."""

    heading: str
    text: str


class CardBody(_Strict):
    """A whole card in one locale."""

    card_id: str
    title: str
    category: Category
    locale: Locale
    drugs: list[str]
    sections: list[SectionBody]
    sources: list[SourceBody]
    generation: str


class Ping(_Strict):
    """One part's state. ``ok`` is false while it is not there to answer."""

    ok: bool
    detail: str


class Readiness(_Strict):
    """Ready when every ping is ok."""

    ready: bool
    pings: dict[str, Ping]


class Problem(BaseModel):
    """RFC 9457 problem details. Never repeats the query."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    request_id: str = ""
