"""What every embedder does alike: normalise, and say who made the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb.errors import StageUnavailable
from kb.models import ModelSpec
from kb.types import Fingerprint


def normalise(values: NDArray[Any]) -> NDArray[np.float32]:
    """Scale to unit length, along the last axis.

    Raises:
        StageUnavailable: a value is not finite or a vector is all zeros, since the similarity of
            such a vector means nothing and stores accept it without a word.
    """
    vector = np.asarray(values, dtype=np.float32)
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    if not np.isfinite(length).all() or (length == 0).any():
        raise StageUnavailable("dense", "broken_vector", "the embedder gave NaN, inf or zeros")
    result: NDArray[np.float32] = vector / length
    return result


def fingerprint_of(spec: ModelSpec) -> Fingerprint:
    """Identify a catalogue model's vectors."""
    return Fingerprint(
        spec.id, spec.revision, spec.dimension, spec.query_prefix, spec.passage_prefix
    )
