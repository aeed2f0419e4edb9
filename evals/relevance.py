"""Fit the probability that a hit helps, and say how well it holds on other queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kb.errors import InputError, WorkError
from serve.calibration import Curve
from serve.candidates import sigmoid

_BINS = 10
_LITTLE_REGULARISED = 1000.0


@dataclass(frozen=True, slots=True)
class JudgedHit:
    """A hit's evidence, and whether its card helps with the query."""

    similarity: float
    rerank_score: float | None
    relevant: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """How good predicted probabilities are: all are over hits that were not fitted on."""

    hits: int
    relevant: int
    brier: float
    """Mean squared error (Brier, 1950); 0 is best."""
    base_brier: float
    """That of always saying the share of relevant hits."""
    auc: float
    """Chance that a relevant hit is given more than another one."""
    calibration_error: float
    """Mean distance of predicted from observed share over ten bins, weighted by their hits."""


def fit(hits: Sequence[JudgedHit], space: str, reranker: str | None) -> Curve:
    """Fit a logistic curve.

    Args:
        hits: of queries that may be tuned on.
        space: the vector space of the similarities.
        reranker: the model of the rerank scores; None fits on similarity alone.

    Raises:
        InputError: the hits are all relevant, or none is.
        WorkError: scikit-learn is not installed.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise WorkError(f"{error}; pip install 'adherence-retrieval[evals]'") from None
    labels = [hit.relevant for hit in hits]
    if len(set(labels)) < 2:  # noqa: PLR2004  # Relevant and not.
        raise InputError(f"{space}: a curve needs hits that help and hits that do not")
    features = [
        [hit.similarity] + ([sigmoid(hit.rerank_score or 0.0)] if reranker else []) for hit in hits
    ]
    model = LogisticRegression(C=_LITTLE_REGULARISED, max_iter=1000).fit(features, labels)
    weights = [round(float(w), 4) for w in model.coef_[0]]
    return Curve(
        space=space,
        reranker=reranker,
        intercept=round(float(model.intercept_[0]), 4),
        similarity=weights[0],
        rerank=weights[1] if reranker else 0.0,
    )


def check(predicted: Sequence[float], relevant: Sequence[bool]) -> Fit:
    """Compare predicted probabilities with what was judged. Raises InputError without hits."""
    if not predicted:
        raise InputError("there is no hit to check a curve on")
    p, y = np.asarray(predicted), np.asarray(relevant, dtype=float)
    bins = np.minimum((p * _BINS).astype(int), _BINS - 1)
    error = sum(
        abs(p[bins == b].sum() - y[bins == b].sum()) for b in range(_BINS) if (bins == b).any()
    )
    return Fit(
        hits=len(p),
        relevant=int(y.sum()),
        brier=float(((p - y) ** 2).mean()),
        base_brier=float(y.mean() * (1 - y.mean())),
        auc=_auc(p[y == 1].tolist(), p[y == 0].tolist()),
        calibration_error=float(error / len(p)),
    )


def _auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    if not positive or not negative:
        return float("nan")
    wins = sum((a > b) + 0.5 * (a == b) for a in positive for b in negative)
    return float(wins / (len(positive) * len(negative)))
