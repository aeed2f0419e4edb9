"""A passage under consideration, with the evidence each stage left on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kb.types import SubChunk

ScoreKind = Literal["rerank", "fused", "similarity", "bm25"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sub-chunk and what is known of it so far; a score is None where its stage did not run."""

    chunk: SubChunk
    ranks: Mapping[str, int]
    fused_score: float | None = None
    bm25_score: float | None = None
    similarity: float | None = None
    rerank_score: float | None = None
    relevance: float | None = None
    asked_as: str | None = None
    """The turn that found the card, where another sub-chunk is shown."""

    def score(self) -> tuple[float, ScoreKind]:
        """Give the score of the last stage that scored it, and which kind that is.

        Kinds are not comparable with each other. The sigmoid of the rerank score, a logit, is
        taken here and nowhere else.
        """
        if self.rerank_score is not None:
            return sigmoid(self.rerank_score), "rerank"
        if self.fused_score is not None:
            return self.fused_score, "fused"
        if self.bm25_score is not None:
            return self.bm25_score, "bm25"
        return self.similarity or 0.0, "similarity"


def sigmoid(logit: float) -> float:
    """Map a logit to (0, 1).

    >>> round(sigmoid(6.1821), 6)
    0.997938
    """
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    exponential = math.exp(logit)
    return exponential / (1.0 + exponential)
