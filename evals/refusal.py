"""How often a threshold refuses what could be answered, and answers what could not. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEP = 0.01
_DECIMALS = 2
FALSE_REFUSALS_AT_MOST = 0.01


@dataclass(frozen=True, slots=True)
class Rates:
    """What a ``min_similarity`` does to queries that have an answer and to those that have none."""

    threshold: float
    false_refusals: float
    """Share of the answerable that get no hit."""
    false_answers: float
    """Share of the unanswerable that get one."""


def rates(
    threshold: float, answerable: Sequence[float | None], unanswerable: Sequence[float | None]
) -> Rates:
    """Apply a threshold to each query's best similarity.

    Args:
        threshold: hits below it are dropped.
        answerable: the best similarity of each query that has an answer; None without a hit.
        unanswerable: the same of the others.
    """
    refused = sum(best is None or best < threshold for best in answerable)
    answered = sum(best is not None and best >= threshold for best in unanswerable)
    return Rates(
        threshold,
        refused / len(answerable) if answerable else 0.0,
        answered / len(unanswerable) if unanswerable else 0.0,
    )


def curve(answerable: Sequence[float | None], unanswerable: Sequence[float | None]) -> list[Rates]:
    """Give the rates at every hundredth from the lowest similarity to the highest."""
    known = [best for best in (*answerable, *unanswerable) if best is not None]
    if not known:
        return []
    first, last = math.floor(min(known) / STEP), math.ceil(max(known) / STEP)
    points = (round(n * STEP, _DECIMALS) for n in range(first, last + 2))
    return [rates(point, answerable, unanswerable) for point in points]


def recommend(found: Sequence[Rates], at_most: float = FALSE_REFUSALS_AT_MOST) -> Rates | None:
    """Choose the highest threshold that wrongly refuses no more than a share; None when none is."""
    allowed = [point for point in found if point.false_refusals <= at_most]
    return max(allowed, key=lambda point: point.threshold, default=None)
