"""Which candidates the cross-encoder sees, and how its word and fusion's combine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve.candidates import Candidate, sigmoid


def window_of(candidates: Sequence[Candidate], size: int) -> list[Candidate]:
    """Take the best candidate of each card, and where there are fewer cards, further ones.

    Each pair costs time: a second sub-chunk of a card can only move a card that the first one has
    placed already, and another card would go unread (ADR 11).
    """
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        best.setdefault(candidate.chunk.card_id, candidate)
    others = (c for c in candidates if best[c.chunk.card_id] is not c)
    return [*best.values(), *others][:size]


def blend(scored: Sequence[Candidate], rerank_weight: float) -> list[Candidate]:
    """Order reranked candidates by the weighted mean of what reranker and fusion say.

    The reranker says a probability, the sigmoid of its logit: where it finds nothing relevant all
    are near 0, and fusion decides. The fused score is scaled to [0, 1] over these candidates. With
    weight 1 the reranker alone decides. The order is total: the mean descending, then id ascending.

    Args:
        scored: candidates that have a fused and a rerank score.
        rerank_weight: the reranker's share, 0 to 1.
    """
    fused = [candidate.fused_score or 0.0 for candidate in scored]
    low, width = min(fused, default=0.0), max(fused, default=0.0) - min(fused, default=0.0)

    def key(candidate: Candidate) -> tuple[float, float, str]:
        logit = candidate.rerank_score or 0.0
        agreed = ((candidate.fused_score or 0.0) - low) / width if width > 0 else 1.0
        mean = rerank_weight * sigmoid(logit) + (1.0 - rerank_weight) * agreed
        return -mean, -logit, candidate.chunk.id

    return sorted(scored, key=key)
