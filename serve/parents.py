"""Collapse sub-chunks to their cards. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kb.types import Locale, SubChunk
from serve.candidates import Candidate

Leads = Mapping[tuple[str, Locale], SubChunk]
"""The first sub-chunk of each card and locale."""


def leads_of(chunks: Iterable[SubChunk]) -> Leads:
    """Find the sub-chunk that stands for a card when none of its text was found."""
    leads: dict[tuple[str, Locale], SubChunk] = {}
    for chunk in sorted(chunks, key=lambda chunk: chunk.ordinal):
        if chunk.shown:
            leads.setdefault((chunk.card_id, chunk.locale), chunk)
    return leads


def best_texts(candidates: Iterable[Candidate]) -> Leads:
    """Find each card's best sub-chunk of text, a locale, among candidates given best first."""
    texts: dict[tuple[str, Locale], SubChunk] = {}
    for candidate in candidates:
        chunk = candidate.chunk
        if chunk.shown:
            texts.setdefault((chunk.card_id, chunk.locale), chunk)
    return texts


def text_of(chunk: SubChunk, texts: Leads, leads: Leads) -> SubChunk:
    """Give what is shown, and reranked, for a sub-chunk: itself, or its card's text for a turn."""
    if chunk.shown:
        return chunk
    key = (chunk.card_id, chunk.locale)
    return texts.get(key) or leads[key]


def collapse_to_cards(
    candidates: Sequence[Candidate], locale: Locale, leads: Leads
) -> list[Candidate]:
    """Keep one candidate a card, at the place of the card's best.

    That best sub-chunk is the passage, unless the card also has candidates in the query's locale:
    then the best of those is. Sub-chunks of one card never add up. A card that was found by a turn
    is shown with its best sub-chunk of text, and the turn is noted.

    Args:
        candidates: best first.
        locale: the query's.
        leads: the passage of a card of which nothing but turns was found.
    """
    kept: dict[str, Candidate] = {}
    for candidate in candidates:
        card_id = candidate.chunk.card_id
        first = kept.setdefault(card_id, candidate)
        if first.chunk.locale != locale and candidate.chunk.locale == locale:
            kept[card_id] = candidate  # A dict keeps the place of the key's first assignment.
    texts = best_texts(candidates)
    return [_with_text(candidate, texts, leads) for candidate in kept.values()]


def _with_text(candidate: Candidate, texts: Leads, leads: Leads) -> Candidate:
    turn = candidate.chunk
    if turn.shown:
        return candidate
    return replace(candidate, chunk=text_of(turn, texts, leads), asked_as=turn.text)
