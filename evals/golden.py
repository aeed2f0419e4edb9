"""The golden set: what patients ask, and which cards answer it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.collection import read_qrels
from evals.vectors import CachedEmbedder
from evals.workbench import Workbench, publish, workbench_of
from kb.cards import read_cards
from kb.chunking import split_cards
from kb.embedders.factory import choose_embedders
from kb.errors import InputError
from kb.progress import Progress
from kb.types import Locale
from kb.views import LOCALES
from serve.settings import Settings

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True, slots=True)
class GoldenQuery:
    """A user's turn; ``gains`` by card id (2 answers it, 1 helps), empty when no card does."""

    id: str
    text: str
    locale: Locale
    kind: str
    gains: Mapping[str, int]

    @property
    def answerable(self) -> bool:
        """Tell whether the knowledge base holds an answer."""
        return bool(self.gains)

    @property
    def for_tuning(self) -> bool:
        """Tell which half it is in: tuning or reporting.

        Queries about one card are in one half, so that nothing learnt of a card is reported.
        """
        best = max(self.gains.values(), default=0)
        group = min((card for card, gain in self.gains.items() if gain == best), default=self.id)
        return hashlib.sha256(group.encode()).digest()[0] % 2 == 0


def read_golden(folder: Path = FOLDER, locales: Sequence[Locale] = LOCALES) -> list[GoldenQuery]:
    """Read the queries of the given locales, by id. Raises InputError naming file and line."""
    found = []
    for locale in locales:
        qrels = read_qrels(folder / f"qrels.{locale}.tsv")
        for row in _rows(folder / f"queries.{locale}.jsonl"):
            query_id, data = row["_id"], row["metadata"]
            found.append(
                GoldenQuery(
                    query_id, row["text"], data["locale"], data["kind"], qrels.pop(query_id, {})
                )
            )
        if qrels:
            raise InputError(f"qrels.{locale}.tsv judges {min(qrels)!r}, which is no query")
    return sorted(found, key=lambda query: query.id)


def open_golden(settings: Settings, cache: Path, progress: Progress | None = None) -> Workbench:
    """Ingest the shipped cards as `make serve` does, and open the stages. Raises WorkError."""
    settings = settings.model_copy(
        update={"kb_home": cache / "kb" / "shipped", "ingest_on_start": False}
    )
    embedders = [
        CachedEmbedder(embedder, cache / "vectors")
        for embedder in choose_embedders(settings.embedder_config())
    ]
    publish(split_cards(read_cards(settings.kb_cards)), settings, embedders, progress)
    return workbench_of(settings, cache)


def texts(queries: Iterable[GoldenQuery]) -> dict[str, str]:
    """Give the texts by id."""
    return {query.id: query.text for query in queries}


def qrels_of(queries: Iterable[GoldenQuery]) -> dict[str, dict[str, int]]:
    """Give the gains of what can be answered, by id."""
    return {query.id: dict(query.gains) for query in queries if query.answerable}


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        raise InputError(f"{path} is missing")
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: {error}") from None
