"""Canary queries: what an editor wants found, checked before a generation is published."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from kb.errors import CardError
from kb.strict_yaml import YamlProblem, load_yaml
from kb.types import Locale

FILE = "canaries.yaml"
_FIELDS = {"query", "card", "locale"}


@dataclass(frozen=True, slots=True)
class Canary:
    """A query and the card that it must find; ``where`` names the line for a person."""

    query: str
    card_id: str
    locale: Locale
    where: str


def read_canaries(cards_folder: Path, card_ids: AbstractSet[str]) -> list[Canary]:
    """Read the canaries beside the cards; without a file there are none.

    Raises:
        CardError: the file is not a list of ``query``, ``card`` and ``locale``, or names a card
            that is not there.
    """
    path = cards_folder / FILE
    if not path.is_file():
        return []
    try:
        entries = load_yaml(path.read_text("utf-8"))
    except YamlProblem as error:
        raise CardError(str(path), error.line, error.problem) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CardError(str(path), 1, f"cannot be read ({type(error).__name__})") from None
    if not isinstance(entries, list):
        raise CardError(str(path), 1, "must be a list of {query, card, locale}")
    return [_canary(path, n, entry, card_ids) for n, entry in enumerate(entries, 1)]


def _canary(path: Path, number: int, entry: Any, card_ids: AbstractSet[str]) -> Canary:
    where = f"{path} (entry {number})"
    if not (
        isinstance(entry, dict)
        and entry.keys() == _FIELDS
        and all(isinstance(value, str) and value.strip() for value in entry.values())
    ):
        raise CardError(where, 1, "must have query, card and locale, each a text")
    if entry["card"] not in card_ids:
        raise CardError(where, 1, f"names the card {entry['card']!r}, which is not there")
    if entry["locale"] not in get_args(Locale):
        raise CardError(where, 1, f"locale must be one of {', '.join(get_args(Locale))}")
    return Canary(entry["query"], entry["card"], entry["locale"], where)
