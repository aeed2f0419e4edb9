"""Collapse sub-chunks to their cards. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kb.types import Locale
from serve.candidates import Candidate


def collapse_to_cards(candidates: Iterable[Candidate], locale: Locale) -> list[Candidate]:
    """Keep one candidate a card, at the place of the card's best.

    That best sub-chunk is the passage, unless the card also has candidates in the query's locale:
    then the best of those is. Sub-chunks of one card never add up.

    Args:
        candidates: best first.
        locale: the query's.
    """
    kept: dict[str, Candidate] = {}
    for candidate in candidates:
        card_id = candidate.chunk.card_id
        first = kept.setdefault(card_id, candidate)
        if first.chunk.locale != locale and candidate.chunk.locale == locale:
            kept[card_id] = candidate  # A dict keeps the place of the key's first assignment.
    return list(kept.values())
