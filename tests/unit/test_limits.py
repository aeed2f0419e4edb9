"""The bound on request bodies, at the level of ASGI."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from serve.limits import MAX_BODY_BYTES, BodyLimit

LIMIT = 10
GONE: Message = {"type": "http.disconnect"}


class Exchange:
    """One request to an application behind the limit, message by message."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.app = BodyLimit(self._application, limit)
        self.body: bytes | None = None
        self.after: Message | None = None
        self.sent: list[Message] = []
        self.received = 0

    async def run(
        self,
        messages: Iterable[Message],
        headers: Iterable[tuple[bytes, bytes]] = (),
        method: str = "POST",
    ) -> int | None:
        """Give the status of the answer; None when there was none."""
        left: Iterator[Message] = iter(messages)

        async def receive() -> Message:
            self.received += 1
            return next(left, GONE)

        async def send(message: Message) -> None:
            self.sent.append(message)

        scope = {"type": "http", "method": method, "headers": list(headers)}
        await self.app(scope, receive, send)
        return self.sent[0]["status"] if self.sent else None

    async def _application(self, _scope: Scope, receive: Receive, send: Send) -> None:
        self.body = b""
        more = True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            self.body += message["body"]
            more = message.get("more_body", False)
        self.after = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})


def parts_of(*parts: bytes) -> list[Message]:
    """Make the messages of a body that streams in."""
    last = len(parts) - 1
    return [
        {"type": "http.request", "body": part, "more_body": n < last}
        for n, part in enumerate(parts)
    ]


def declared(length: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", length)]


def test_a_body_may_have_sixty_four_kibibytes() -> None:
    assert MAX_BODY_BYTES == 64 * 1024


@pytest.mark.parametrize("headers", [[], declared(b"10")])
async def test_a_body_at_the_limit_arrives_whole(headers: Any) -> None:
    exchange = Exchange()

    assert await exchange.run(parts_of(b"12345", b"", b"67890"), headers) == 200
    assert exchange.body == b"1234567890"


async def test_after_the_body_the_application_hears_what_the_server_says_next() -> None:
    exchange = Exchange()

    await exchange.run([*parts_of(b"12"), GONE])

    assert exchange.after == GONE


async def test_a_declared_length_over_the_limit_is_refused_before_anything_is_read() -> None:
    exchange = Exchange()

    assert await exchange.run(parts_of(b"x" * 11), declared(b"11")) == 413
    assert exchange.received == 0
    assert exchange.body is None


async def test_a_stream_over_the_limit_is_refused_as_soon_as_it_is_over() -> None:
    exchange = Exchange()

    assert await exchange.run(parts_of(*[b"123456"] * 1000)) == 413
    assert exchange.received == 2
    assert exchange.body is None


async def test_a_declared_length_that_lies_is_counted_all_the_same() -> None:
    exchange = Exchange()

    assert await exchange.run(parts_of(b"x" * 11), declared(b"1")) == 413
    assert exchange.body is None


@pytest.mark.parametrize(
    "length", [b"", b"-1", b"+5", b"1e3", b"abc", b"5, 5", "٥".encode(), b"9" * 5000]
)
async def test_a_length_that_is_no_length_is_refused(length: bytes) -> None:
    exchange = Exchange()

    status = await exchange.run(parts_of(b"12"), declared(length))

    assert status in {400, 413}
    assert exchange.body is None


async def test_the_refusal_is_problem_json_that_closes_the_connection() -> None:
    exchange = Exchange()

    await exchange.run(parts_of(b"x" * 11))

    start, end = exchange.sent
    headers = dict(start["headers"])
    problem = json.loads(end["body"])
    assert headers[b"content-type"] == b"application/problem+json"
    assert int(headers[b"content-length"]) == len(end["body"])
    assert headers[b"connection"] == b"close"
    assert set(problem) == {"type", "title", "status", "detail", "request_id"}
    assert problem["status"] == 413
    assert "10 bytes" in problem["detail"]


async def test_a_caller_that_goes_away_in_the_middle_gets_no_answer() -> None:
    exchange = Exchange()

    status = await exchange.run([{"type": "http.request", "body": b"1", "more_body": True}, GONE])

    assert status is None
    assert exchange.body is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_method_without_a_body_goes_through(method: str) -> None:
    exchange = Exchange()

    assert await exchange.run(parts_of(b""), method=method) == 200


async def test_what_is_not_http_goes_through() -> None:
    seen = []

    async def application(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    await BodyLimit(application)({"type": "lifespan"}, nothing, nothing)

    assert seen == ["lifespan"]


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.binary(max_size=6), min_size=1, max_size=6))
def test_a_body_passes_exactly_when_it_is_within_the_limit(parts: list[bytes]) -> None:
    exchange = Exchange()

    status = run(exchange, parts)

    whole = b"".join(parts)
    assert status == (200 if len(whole) <= LIMIT else 413)
    assert exchange.body == (whole if len(whole) <= LIMIT else None)


def run(exchange: Exchange, parts: list[bytes]) -> int | None:
    """Drive a coroutine that never waits, without a loop."""
    try:
        exchange.run(parts_of(*parts)).send(None)
    except StopIteration as done:
        status: int | None = done.value
        return status
    raise AssertionError
