"""Every knob, its default and its bounds."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kb.analysis.lexical import AnalyzerName, LexicalConfig
from kb.embedders.factory import EmbedderConfig, names
from kb.errors import SettingsError
from kb.models import ModelStore, catalogue
from kb.stores.factory import StoreConfig, StoreKind
from serve.fusion import FusionMethod


def _split_commas(value: object) -> object:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


def _none_word(value: object) -> object:
    return None if isinstance(value, str) and value.lower() in {"", "none", "null"} else value


def _split_pairs(value: object) -> object:
    """Read ``name=0.5,other=0.8``, as the environment and flags write a mapping."""
    if not isinstance(value, str):
        return value
    return dict(pair.rpartition("=")[::2] for pair in value.split(",") if pair)


_Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]


class Settings(BaseModel):
    """What can be set, in ``serve_config.yaml`` (``args``), by environment or by ``--set``.

    The environment variable of a setting is its name in capitals. Those in ``LIVE_SETTINGS`` can
    also be changed while the service runs, through the Ingress deployment's ``user_config``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    # Places
    kb_cards: Path = Field(
        default_factory=lambda: Path(str(resources.files("kb"))) / "content",
        description="The cards that are ingested.",
    )
    kb_home: Path = Field(Path(".kb"), description="The embedded store and the ingest lock.")
    kb_store: StoreKind = Field(
        "chroma", description="Where generations lie; other than chroma needs KB_STORE_URL."
    )
    kb_namespace: str = Field(
        "adherence",
        pattern=r"^[a-z][a-z0-9-]{1,23}$",
        description="Begins every name in a store that others use too.",
    )
    model_home: Path = Field(Path(".models"), description="The model store.")
    keep_generations: int = Field(3, ge=2, le=100, description="Generations that ingest keeps.")
    generation_poll_s: float = Field(
        1.0, ge=0.1, le=60, description="Seconds between two looks for a new generation."
    )
    ingest_on_start: bool = Field(True, description="Ingest when there is no knowledge base yet.")

    # Models
    embedder_models: _Names = Field(
        ("voyage-3.5", "bge-small-en-v1.5|BAAI/bge-small-en-v1.5", "multilingual-e5-small"),
        description="A vector space each, by preference, of those at hand; a|b takes the first "
        "that is. Voyage is at hand when VOYAGE_API_KEY is set.",
    )
    reranker_models: _Names = Field(
        ("BAAI/bge-reranker-v2-m3", "BAAI/bge-reranker-base", "ms-marco-MiniLM-L-12-v2"),
        description="Rerankers by preference; the first that is present and loads is used.",
    )
    voyage_base_url: Annotated[str | None, BeforeValidator(_none_word)] = Field(
        None, pattern=r"^https?://[^\s\[\]]+$", description="Another address of Voyage's API."
    )
    model_threads: int = Field(1, ge=1, le=64, description="Threads of one model replica.")

    # The lexical index
    analyzer: AnalyzerName = Field(
        "product", description="How texts become tokens; published: as BM25 baselines do."
    )
    bm25_k1: float = Field(1.5, gt=0, le=10, description="How soon repeated words stop to count.")
    bm25_b: float = Field(0.75, ge=0, le=1, description="How much length is held against a text.")
    bm25_stop_words: bool = Field(True, description="The product analyser drops function words.")
    drug_name_expansion: bool = Field(
        True, description="A query's drug names bring brand, generic and right spelling along."
    )

    # The switch, and the stages
    retrieval_hybrid_enabled: bool = Field(True, description="False returns to dense only.")
    rerank_enabled: bool = Field(True, description="False ends with fusion.")
    fusion: FusionMethod = Field("rrf", description="How the legs' rankings are merged.")
    rrf_k: float = Field(10.0, gt=0, le=1000, description="The constant of rank fusion.")
    bm25_weight: float = Field(0.5, ge=0, le=100, description="The lexical leg's weight.")
    dense_weight: float = Field(1.0, ge=0, le=100, description="The dense leg's weight.")
    dense_weight_by_embedder: Annotated[
        dict[str, Annotated[float, Field(ge=0, le=100)]], BeforeValidator(_split_pairs)
    ] = Field(
        default={"multilingual-e5-small": 0.5},
        description="Multiplies it for the embedder that answers.",
    )
    cross_language_bm25_weight: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Multiplies the lexical leg's weight where what it finds is in another "
        "language than the query: names and numbers match, words seldom do.",
    )
    rerank_weight: float = Field(
        0.7, ge=0, le=1, description="The reranker's share of the order; the rest is fusion's."
    )
    candidate_multiplier: int = Field(
        50,
        ge=1,
        le=1000,
        description="Hits asked of a leg for each hit wanted. With the cap below every top_k asks "
        "alike, so that the answer for 3 begins the answer for 10.",
    )
    candidate_max: int = Field(50, ge=1, le=1000, description="Hits asked of a leg at most.")
    reranker_max_input: int = Field(10, ge=0, le=200, description="Candidates reranked at most.")
    min_similarity: Annotated[float | None, BeforeValidator(_none_word)] = Field(
        None, ge=-1, le=1, description="Cosine below which a hit is dropped; ships off."
    )

    min_similarity_by_embedder: Annotated[
        dict[str, Annotated[float, Field(ge=-1, le=1)]], BeforeValidator(_split_pairs)
    ] = Field(
        default={},
        description="The same for the embedder that answers, where min_similarity is not set.",
    )
    calibration_file: Path = Field(
        default_factory=lambda: Path(str(resources.files("serve"))) / "calibration.json",
        description="Curves that turn scores into a probability of relevance, for `explain`.",
    )

    # Time
    deadline_ms: int = Field(1000, ge=50, le=60_000, description="For a request that names none.")
    leg_timeout_ms: int = Field(500, ge=5, le=60_000, description="For a leg.")
    embedder_timeout_ms: int = Field(
        300, ge=5, le=60_000, description="For a vendor's API, so that another space has time left."
    )
    rerank_budget_ms: int = Field(150, ge=0, le=60_000, description="For reranking.")

    # Observation
    trace_exporter: Literal["none", "console", "otlp", "file"] = Field(
        "none", description="Where spans go; OTEL_EXPORTER_OTLP_ENDPOINT names an OTLP collector."
    )
    trace_file: Path = Field(Path("traces.jsonl"), description="For the file exporter.")

    def resolved(self) -> Settings:
        """Make every place absolute, since replicas may run in another directory."""
        places = ("kb_cards", "kb_home", "model_home", "trace_file", "calibration_file")
        return self.model_copy(update={name: getattr(self, name).absolute() for name in places})

    def public(self) -> dict[str, Any]:
        """Give the settings as JSON values, without what an address may hold of a secret."""
        values = self.model_dump(mode="json")
        if self.voyage_base_url:
            values["voyage_base_url"] = urlsplit(self.voyage_base_url).hostname
        return values

    def embedder_config(self) -> EmbedderConfig:
        """Say how to make an embedder."""
        return EmbedderConfig(
            store=ModelStore(self.model_home),
            preference=self.embedder_models,
            voyage_base_url=self.voyage_base_url,
            query_timeout_s=self.embedder_timeout_ms / 1000,
            threads=self.model_threads,
        )

    def lexical_config(self) -> LexicalConfig:
        """Say how the lexical leg reads and scores."""
        return LexicalConfig(
            analyzer=self.analyzer,
            k1=self.bm25_k1,
            b=self.bm25_b,
            stop_words=self.bm25_stop_words,
            drug_names=self.drug_name_expansion,
        )

    def store_config(self) -> StoreConfig:
        """Say where the generations lie."""
        return StoreConfig(self.kb_home, self.kb_store, self.kb_namespace)


LIVE_SETTINGS = frozenset(
    {
        "retrieval_hybrid_enabled",
        "rerank_enabled",
        "rrf_k",
        "fusion",
        "bm25_weight",
        "dense_weight",
        "dense_weight_by_embedder",
        "cross_language_bm25_weight",
        "rerank_weight",
        "candidate_multiplier",
        "candidate_max",
        "reranker_max_input",
        "min_similarity",
        "min_similarity_by_embedder",
        "deadline_ms",
        "leg_timeout_ms",
        "rerank_budget_ms",
    }
)


def load_settings(
    given: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Combine defaults, ``given`` (a file's), the environment and ``overrides`` (flags), each
    winning over the one before.

    Raises:
        SettingsError: a name is unknown or a value impossible; the message names it.
    """
    from_environment = {
        name: environ[name.upper()] for name in Settings.model_fields if name.upper() in environ
    }
    return _validate({**(given or {}), **from_environment, **(overrides or {})}).resolved()


def change_live(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Apply a ``user_config`` to running settings. Raises SettingsError naming what cannot be."""
    for name in changes:
        if name in Settings.model_fields and name not in LIVE_SETTINGS:
            raise SettingsError(f"setting {name!r} cannot change while serving; restart with it")
    return _validate({**settings.model_dump(), **changes})


def _validate(values: Mapping[str, Any]) -> Settings:
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"unknown setting {name!r}{hint}") from None
        raise SettingsError(f"setting {name!r}: {first['msg']}") from None
    for setting in (
        "embedder_models",
        "reranker_models",
        "dense_weight_by_embedder",
        "min_similarity_by_embedder",
    ):
        for model_id in names(getattr(settings, setting)):
            if model_id not in catalogue():
                known = ", ".join(catalogue())
                raise SettingsError(f"setting {setting!r}: unknown model {model_id!r} (of {known})")
    return settings
