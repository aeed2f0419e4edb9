"""The golden set: what patients ask, and which cards answer it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evals.collection import read_qrels
from evals.vectors import cached_embedders
from evals.workbench import Workbench, publish, workbench_of
from kb.cards import read_cards
from kb.chunking import split_cards
from kb.errors import InputError
from kb.progress import Progress
from kb.types import Locale
from kb.views import LOCALES
from serve.settings import Settings

FOLDER = Path(__file__).parent / "golden"


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    locale: Locale
    kind: str


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(alias="_id", min_length=1)
    text: str = Field(min_length=1)
    metadata: _Metadata


@dataclass(frozen=True, slots=True)
class GoldenQuery:
    """A user's turn; ``gains`` by card id (2 answers it, 1 helps), empty when no card does.

    ``for_tuning`` tells which half it is in, tuning or reporting.
    """

    id: str
    text: str
    locale: Locale
    kind: str
    gains: Mapping[str, int]
    for_tuning: bool

    @property
    def answerable(self) -> bool:
        """Tell whether the knowledge base holds an answer."""
        return bool(self.gains)


def read_golden(folder: Path = FOLDER, locales: Sequence[Locale] = LOCALES) -> list[GoldenQuery]:
    """Read the queries of the given locales, by id.

    Queries that share a best card are in one half, whatever their language, so that nothing learnt
    of a card is reported.

    Raises:
        InputError: a file is missing or not what it should be; the message names file and line.
    """
    qrels: dict[str, dict[str, int]] = {}
    lines: dict[str, _Line] = {}
    for locale in LOCALES:
        judged = read_qrels(folder / f"qrels.{locale}.tsv")
        read = _lines(folder / f"queries.{locale}.jsonl", locale)
        if strangers := judged.keys() - read.keys():
            raise InputError(f"qrels.{locale}.tsv judges {min(strangers)!r}, which is no query")
        if twice := read.keys() & lines.keys():
            raise InputError(f"queries.{locale}.jsonl: {min(twice)!r} is in another language too")
        qrels |= judged
        lines |= read
    group_of = _groups(qrels.values())
    return [
        GoldenQuery(
            query_id,
            line.text,
            line.metadata.locale,
            line.metadata.kind,
            gains,
            _is_first_half(group_of[_best(gains)[0]] if gains else query_id),
        )
        for query_id, line in sorted(lines.items())
        if line.metadata.locale in locales
        for gains in [qrels.get(query_id, {})]
    ]


def _best(gains: Mapping[str, int]) -> list[str]:
    highest = max(gains.values())
    return sorted(card for card, gain in gains.items() if gain == highest)


def _groups(judged: Iterable[Mapping[str, int]]) -> dict[str, str]:
    """Join cards that are best for one query; give each card the first of its group."""
    first_of: dict[str, str] = {}

    def find(card: str) -> str:
        while (first := first_of.setdefault(card, card)) != card:
            card = first
        return card

    for gains in judged:
        first, *others = map(find, _best(gains))
        for other in others:
            low, high = sorted((find(first), other))
            first_of[high] = low
    return {card: find(card) for card in list(first_of)}


def _is_first_half(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


def open_golden(settings: Settings, cache: Path, progress: Progress | None = None) -> Workbench:
    """Ingest the shipped cards as `make serve` does, and open the stages. Raises WorkError."""
    settings = settings.model_copy(
        update={"kb_home": cache / "kb" / "shipped", "ingest_on_start": False}
    )
    embedders = list(cached_embedders(settings.embedder_config(), cache / "vectors"))
    publish(split_cards(read_cards(settings.kb_cards)), settings, embedders, progress)
    return workbench_of(settings, cache)


def texts(queries: Iterable[GoldenQuery]) -> dict[str, str]:
    """Give the texts by id."""
    return {query.id: query.text for query in queries}


def qrels_of(queries: Iterable[GoldenQuery]) -> dict[str, dict[str, int]]:
    """Give the gains of what can be answered, by id."""
    return {query.id: dict(query.gains) for query in queries if query.answerable}


def _lines(path: Path, locale: Locale) -> dict[str, _Line]:
    if not path.is_file():
        raise InputError(f"{path} is missing")
    found: dict[str, _Line] = {}
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{path}:{number}: {where} {first['msg']}") from None
        if line.id in found or line.metadata.locale != locale:
            raise InputError(f"{path}:{number}: {line.id!r} is there twice, or of another locale")
        found[line.id] = line
    return found
