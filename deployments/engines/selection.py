"""Cut a leg's order to its depth without letting one long card take every place. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kb.types import Hit


def select_hits(order: Iterable[tuple[Hit, str]], depth: int, min_cards: int) -> tuple[Hit, ...]:
    """Take the first ``depth`` hits, then the best hit of each further card up to ``min_cards``.

    Args:
        order: hits with their card's id, best first.
        depth: how many hits to take whatever their card.
        min_cards: how many distinct cards to reach while there are any.

    >>> order = [(Hit("a:1", 3.0), "a"), (Hit("a:2", 2.0), "a"), (Hit("b:1", 1.0), "b")]
    >>> [hit.chunk_id for hit in select_hits(order, depth=1, min_cards=2)]
    ['a:1', 'b:1']
    """
    taken: list[Hit] = []
    cards: set[str] = set()
    for hit, card_id in order:
        if len(taken) < depth or card_id not in cards:
            taken.append(hit)
            cards.add(card_id)
        if len(taken) >= depth and len(cards) >= min_cards:
            break
    return tuple(taken)
