"""What a shim hands over in place of an answer."""

from __future__ import annotations

import time

import pytest

from deployments.failures import failure_as_value, refuse_when_late
from kb.errors import StageUnavailable


def test_work_whose_time_ran_out_in_the_queue_is_refused_with_the_reason() -> None:
    with pytest.raises(StageUnavailable) as refused:
        refuse_when_late("dense", time.time() - 1)

    assert (refused.value.stage, refused.value.reason) == ("dense", "deadline")


def test_work_that_still_has_time_is_done() -> None:
    refuse_when_late("dense", time.time() + 60)


def test_an_expected_failure_becomes_a_value_and_any_other_stays_an_error() -> None:
    failure = StageUnavailable("bm25", "index_empty")

    def fail(error: Exception) -> int:
        raise error

    assert failure_as_value(fail)(failure) is failure
    with pytest.raises(KeyError):
        failure_as_value(fail)(KeyError("x"))
