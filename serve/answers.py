"""Write what the pipeline found in the words of the wire contract."""

from __future__ import annotations

from serve.candidates import Candidate
from serve.schemas import Bm25Evidence, DenseEvidence, Evidence, HitBody, SourceBody


def hit_body(rank: int, candidate: Candidate, *, explain: bool) -> HitBody:
    """Write a candidate as the hit of an answer."""
    chunk = candidate.chunk
    score, kind = candidate.score()
    return HitBody(
        rank=rank,
        card_id=chunk.card_id,
        chunk_id=chunk.id,
        title=chunk.title,
        category=chunk.category,
        locale=chunk.locale,
        passage=chunk.text,
        score=score,
        score_kind=kind,
        similarity=candidate.similarity,
        sources=[SourceBody(name=s.name, url=s.url, licence=s.licence) for s in chunk.sources],
        evidence=_evidence(candidate) if explain else None,
    )


def _evidence(candidate: Candidate) -> Evidence:
    bm25 = dense = None
    if candidate.bm25_score is not None:
        bm25 = Bm25Evidence(rank=candidate.ranks["bm25"], score=candidate.bm25_score)
    if candidate.similarity is not None:
        dense = DenseEvidence(rank=candidate.ranks.get("dense"), similarity=candidate.similarity)
    return Evidence(
        bm25=bm25,
        dense=dense,
        fused_score=candidate.fused_score,
        rerank_score=candidate.rerank_score,
        relevance=candidate.relevance,
        calibrated=candidate.relevance is not None,
        asked_as=candidate.asked_as,
    )
