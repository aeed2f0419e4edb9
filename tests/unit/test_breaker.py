"""The circuit breaker around an embedder."""

from __future__ import annotations

import threading

import pytest

from deployments.engines.breaker import FAILURES_TO_OPEN, OPEN_FOR_S, Breaker
from fakes_serve import FakeClock
from kb.errors import StageUnavailable


class Vendor:
    """Answer, or fail while ``down``."""

    def __init__(self) -> None:
        self.down = False
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.down:
            raise StageUnavailable("dense", "timeout")
        return "vector"


def reason_of(breaker: Breaker, vendor: Vendor) -> str:
    try:
        return breaker.call(vendor)
    except StageUnavailable as failure:
        return failure.reason


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def breaker(clock: FakeClock) -> Breaker:
    return Breaker("voyage-3.5", clock)


def test_it_opens_after_failures_on_end_and_asks_no_more(breaker: Breaker) -> None:
    vendor = Vendor()
    vendor.down = True

    reasons = [reason_of(breaker, vendor) for _ in range(FAILURES_TO_OPEN + 2)]

    assert reasons == ["timeout"] * FAILURES_TO_OPEN + ["breaker_open"] * 2
    assert vendor.calls == FAILURES_TO_OPEN


def test_a_success_between_starts_the_count_again(breaker: Breaker) -> None:
    vendor = Vendor()
    for _ in range(3):
        vendor.down = True
        for _ in range(FAILURES_TO_OPEN - 1):
            assert reason_of(breaker, vendor) == "timeout"
        vendor.down = False
        assert reason_of(breaker, vendor) == "vector"


def test_after_a_while_one_call_tries_and_success_closes_it(
    breaker: Breaker, clock: FakeClock
) -> None:
    vendor = Vendor()
    vendor.down = True
    for _ in range(FAILURES_TO_OPEN):
        reason_of(breaker, vendor)
    clock.advance(OPEN_FOR_S)
    assert reason_of(breaker, vendor) == "timeout"
    assert reason_of(breaker, vendor) == "breaker_open"

    clock.advance(OPEN_FOR_S)
    vendor.down = False
    assert [reason_of(breaker, vendor) for _ in range(2)] == ["vector", "vector"]


def test_while_one_call_tries_the_others_are_refused(breaker: Breaker, clock: FakeClock) -> None:
    vendor = Vendor()
    vendor.down = True
    for _ in range(FAILURES_TO_OPEN):
        reason_of(breaker, vendor)
    clock.advance(OPEN_FOR_S)
    refused: list[str] = []

    def probe() -> str:
        refused.append(reason_of(breaker, Vendor()))
        return "vector"

    assert breaker.call(probe) == "vector"
    assert refused == ["breaker_open"]


def test_calls_run_side_by_side(breaker: Breaker) -> None:
    both = threading.Barrier(2)
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(breaker.call(lambda: both.wait(10))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert sorted(results) == [0, 1]
