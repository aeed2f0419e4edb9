"""Say how far a mean over queries would move had other queries of the kind been asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kb.errors import InputError

RESAMPLES = 10_000
_LEVEL = 0.95
_SEED = 20_261_201
_NOTHING = 1e-6
"""What rounding may leave of a difference of 0: values are kept with six decimals."""
_DRAWN_AT_ONCE = 1_000_000
"""Queries drawn at once, however many there are: 16 MB."""

Verdict = Literal["better", "worse", "alike"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the 95 % percentile bootstrap interval of it."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Difference(Interval):
    """The mean of paired differences, and its interval."""

    def __str__(self) -> str:
        return f"{self.mean:+z.3f} [{self.low:+z.3f}, {self.high:+z.3f}]"

    @property
    def verdict(self) -> Verdict:
        """Say what the interval shows; ``alike`` is no proof: it shows neither of the others."""
        if self.low > _NOTHING:
            return "better"
        return "worse" if self.high < -_NOTHING else "alike"


def interval(values: Mapping[str, float]) -> Interval:
    """Give the mean of values by query id, with its interval; the same values give the same.

    Raises:
        InputError: there are no values.
    """
    return Interval(*_bootstrap(values))


def paired_difference(a: Mapping[str, float], b: Mapping[str, float]) -> Difference:
    """Give a - b over the same queries, drawn in pairs.

    Raises:
        InputError: the queries differ, or there are none.
    """
    if unpaired := a.keys() ^ b.keys():
        raise InputError(
            f"paired values must be of the same queries; {min(unpaired)!r} is in one only"
        )
    return Difference(*_bootstrap({query_id: value - b[query_id] for query_id, value in a.items()}))


def _bootstrap(values: Mapping[str, float]) -> tuple[float, float, float]:
    if not values:
        raise InputError("there is no query to take a mean over")
    sample = np.array([values[query_id] for query_id in sorted(values)])
    means = _resampled_means(sample)
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(sample.mean()), float(low), float(high)


def _resampled_means(sample: NDArray[np.float64]) -> NDArray[np.float64]:
    generator = np.random.default_rng(_SEED)
    means = np.empty(RESAMPLES)
    rows = max(1, _DRAWN_AT_ONCE // len(sample))
    for start in range(0, RESAMPLES, rows):
        part = means[start : start + rows]
        drawn = generator.integers(len(sample), size=(len(part), len(sample)))
        sample[drawn].mean(axis=1, out=part)
    return means
