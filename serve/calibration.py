"""How likely a hit is relevant: a probability fitted on judged queries, where there is one."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kb.errors import SettingsError
from serve.candidates import Candidate, sigmoid


class Curve(BaseModel):
    """A logistic curve for the hits of one vector space, reranked by one model or by none.

    The probability is ``sigmoid(intercept + similarity * s + rerank * p)``: ``s`` is the cosine,
    ``p`` the sigmoid of the rerank score (Platt, "Probabilistic Outputs for Support Vector
    Machines", 1999).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    space: str
    reranker: str | None
    intercept: float
    similarity: float
    rerank: float = 0.0


class Calibration(BaseModel):
    """What was fitted, and on what."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fitted_on: str
    curves: tuple[Curve, ...]

    def relevance(
        self, candidate: Candidate, space: str | None, reranker: str | None
    ) -> float | None:
        """Give a hit's probability of being relevant; None when no curve fits its evidence.

        Args:
            candidate: with what is known of it.
            space: the vector space that its similarity was measured in.
            reranker: the model that its rerank score, if any, is from.
        """
        if candidate.similarity is None:
            return None
        model = None if candidate.rerank_score is None else reranker
        for curve in self.curves:
            if (curve.space, curve.reranker) == (space, model):
                probability = sigmoid(candidate.rerank_score or 0.0) if model else 0.0
                return sigmoid(
                    curve.intercept
                    + curve.similarity * candidate.similarity
                    + curve.rerank * probability
                )
        return None


def load_calibration(path: Path | None) -> Calibration | None:
    """Read a calibration file; None when there is none.

    Raises:
        SettingsError: it is not what it should be; the message names the file and the field.
    """
    if path is None or not path.exists():
        return None
    try:
        return Calibration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"calibration_file {path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise SettingsError(f"calibration_file {path}: {where}: {first['msg']}") from None
