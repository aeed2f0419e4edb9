"""Reciprocal rank fusion. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_RANK = 1


@dataclass(frozen=True, slots=True)
class FusedHit:
    """A sub-chunk after fusion, with its rank in each leg that found it."""

    chunk_id: str
    fused_score: float
    ranks: Mapping[str, int]


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
    ranks: dict[str, dict[str, int]] = {}
    for leg in sorted(rankings):  # A fixed order of addition keeps sums equal to the last bit.
        weight = weights.get(leg, 1.0)
        for rank, chunk_id in enumerate(rankings[leg], start=FIRST_RANK):
            scores[chunk_id] = scores.get(chunk_id, 0.0) + weight / (rrf_k + rank)
            ranks.setdefault(chunk_id, {})[leg] = rank
    return sorted(
        (FusedHit(chunk_id, score, ranks[chunk_id]) for chunk_id, score in scores.items()),
        key=lambda hit: (-hit.fused_score, hit.chunk_id),
    )
