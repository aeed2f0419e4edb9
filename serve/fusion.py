"""Merge the legs' rankings: reciprocal rank fusion, and fusion of scaled scores. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kb.types import Hit

FIRST_RANK = 1

FusionMethod = Literal["rrf", "min_max", "theoretical_min_max", "dbsf"]

_LOWEST: Mapping[str, float] = {"bm25": 0.0, "dense": -1.0}
"""The least score that a leg's kind of score can have: no word shared; the opposite direction."""

_Scale = Callable[[str, Sequence[float]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class FusedHit:
    """A sub-chunk after fusion, with its rank in each leg that found it."""

    chunk_id: str
    fused_score: float
    ranks: Mapping[str, int]


def fuse(
    rankings: Mapping[str, Sequence[Hit]],
    weights: Mapping[str, float],
    method: FusionMethod,
    rrf_k: float,
) -> list[FusedHit]:
    """Merge rankings by a method of choice; every hit of every ranking is kept."""
    if method == "rrf":
        ids = {leg: [hit.chunk_id for hit in hits] for leg, hits in rankings.items()}
        return reciprocal_rank_fusion(ids, weights, rrf_k)
    return convex_combination(rankings, weights, _SCALES[method])


def reciprocal_rank_fusion(
    rankings: Mapping[str, Sequence[str]], weights: Mapping[str, float], rrf_k: float
) -> list[FusedHit]:
    """Merge rankings by the sum over legs of ``weight / (rrf_k + rank)``, rank from 1.

    A sub-chunk that a leg did not find gets nothing from that leg. The order is total: score
    descending, then id ascending. Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion Outperforms
    Condorcet and Individual Rank Learning Methods", SIGIR 2009, with k = 60 and equal weights.

    >>> fused = reciprocal_rank_fusion({"dense": ["a", "b"], "bm25": ["b"]}, {}, rrf_k=60)
    >>> [hit.chunk_id for hit in fused]
    ['b', 'a']
    """
    scores: dict[str, float] = {}
    for leg in sorted(rankings):  # A fixed order of addition keeps sums equal to the last bit.
        weight = weights.get(leg, 1.0)
        for rank, chunk_id in enumerate(rankings[leg], start=FIRST_RANK):
            scores[chunk_id] = scores.get(chunk_id, 0.0) + weight / (rrf_k + rank)
    return _in_order(scores, rankings)


def convex_combination(
    rankings: Mapping[str, Sequence[Hit]], weights: Mapping[str, float], scale: _Scale
) -> list[FusedHit]:
    """Merge rankings by the weighted mean of scores, each leg's scaled to [0, 1].

    A sub-chunk that a leg did not find has that leg's lowest scaled score at most; it gets 0 from
    it. Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023.

    Args:
        rankings: hits by leg, best first.
        weights: by leg; 1 where none is given.
        scale: gives the scores that become 0 and 1, of a leg and its scores.
    """
    total = math.fsum(weights.get(leg, 1.0) for leg in rankings) or 1.0
    scores: dict[str, float] = {}
    for leg in sorted(rankings):
        if not rankings[leg]:
            continue
        low, high = scale(leg, [hit.score for hit in rankings[leg]])
        weight = weights.get(leg, 1.0) / total
        for hit in rankings[leg]:
            scaled = (hit.score - low) / (high - low) if high > low else 1.0
            scores[hit.chunk_id] = scores.get(hit.chunk_id, 0.0) + weight * min(
                1.0, max(0.0, scaled)
            )
    ids = {leg: [hit.chunk_id for hit in hits] for leg, hits in rankings.items()}
    return _in_order(scores, ids)


def _in_order(scores: Mapping[str, float], rankings: Mapping[str, Sequence[str]]) -> list[FusedHit]:
    ranks: dict[str, dict[str, int]] = {chunk_id: {} for chunk_id in scores}
    for leg in sorted(rankings):
        for rank, chunk_id in enumerate(rankings[leg], start=FIRST_RANK):
            ranks[chunk_id][leg] = rank
    return sorted(
        (FusedHit(chunk_id, score, ranks[chunk_id]) for chunk_id, score in scores.items()),
        key=lambda hit: (-hit.fused_score, hit.chunk_id),
    )


def _min_max(leg: str, scores: Sequence[float]) -> tuple[float, float]:  # noqa: ARG001  # A _Scale.
    return min(scores), max(scores)


def _theoretical_min_max(leg: str, scores: Sequence[float]) -> tuple[float, float]:
    return min(_LOWEST[leg], *scores), max(scores)


def _three_deviations(leg: str, scores: Sequence[float]) -> tuple[float, float]:  # noqa: ARG001
    """Distribution-based score fusion: the mean, three standard deviations down and up."""
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    return mean - 3 * deviation, mean + 3 * deviation


_SCALES: Mapping[FusionMethod, _Scale] = {
    "min_max": _min_max,
    "theoretical_min_max": _theoretical_min_max,
    "dbsf": _three_deviations,
}
