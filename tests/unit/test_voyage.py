"""The Voyage adapter: the real client, on the wire, against a server on loopback."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import tenacity.nap

from fakes_kb import (
    VOYAGE_DIMENSION,
    Behaviour,
    FakeVoyage,
    text_vector,
    voyage_error,
    voyage_reply,
)
from kb.embedders.voyage import BATCH_CHARACTERS, BATCH_TEXTS, VoyageEmbedder
from kb.errors import ModelError, RetrievalError, StageUnavailable
from kb.models import find_spec

KEY = "pa-canary-key"
QUERY = "can I take CANARY-7f3a with wine?"
SPEC = find_spec("voyage-3.5")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Keep the client's traffic on this machine and its back-off on the clock of a list."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    asked: list[float] = []
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=asked.append))
    return asked


@pytest.fixture
def api() -> FakeVoyage:
    return FakeVoyage()


@pytest.fixture
def voyage(api: FakeVoyage) -> Iterator[VoyageEmbedder]:
    with api.running() as url:
        yield VoyageEmbedder(SPEC, KEY, url, query_timeout_s=0.3)


def _expected(*texts: str) -> np.ndarray:
    return np.stack([text_vector(text, VOYAGE_DIMENSION) for text in texts])


# S26: what is sent.


def test_a_query_is_sent_as_a_query_to_the_embeddings_address_of_the_base_url(
    voyage: VoyageEmbedder, api: FakeVoyage
) -> None:
    vector = voyage.embed_query(QUERY)
    assert vector.shape == (1024,)
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, _expected(QUERY)[0], atol=1e-6)
    assert api.paths == ["/v1/embeddings"]
    assert api.keys == [f"Bearer {KEY}"]
    (request,) = api.requests
    assert (request["input"], request["input_type"], request["model"]) == (
        [QUERY],
        "query",
        "voyage-3.5",
    )


def test_passages_are_sent_as_documents_in_calls_of_at_most_128_and_keep_their_order(
    voyage: VoyageEmbedder, api: FakeVoyage
) -> None:
    texts = [f"passage {n}" for n in range(129)]
    matrix = voyage.embed_passages(texts)
    assert [len(request["input"]) for request in api.requests] == [128, 1]
    assert {request["input_type"] for request in api.requests} == {"document"}
    assert {request["model"] for request in api.requests} == {"voyage-3.5"}
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(matrix, _expected(*texts), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "calls"),
    [
        ([], []),
        ([10], [1]),
        ([10] * BATCH_TEXTS, [BATCH_TEXTS]),
        ([10] * (2 * BATCH_TEXTS + 3), [BATCH_TEXTS, BATCH_TEXTS, 3]),
        ([BATCH_CHARACTERS // 2] * 5, [2, 2, 1]),
        ([BATCH_CHARACTERS, 1], [1, 1]),
        # One passage over the limit is sent alone and sinks no other.
        ([5, BATCH_CHARACTERS + 1, 5], [1, 1, 1]),
    ],
)
def test_a_call_keeps_to_the_vendor_s_limits(
    voyage: VoyageEmbedder, api: FakeVoyage, lengths: list[int], calls: list[int]
) -> None:
    texts = [chr(97 + n % 26) * length for n, length in enumerate(lengths)]
    matrix = voyage.embed_passages(texts)
    assert matrix.shape == (len(texts), VOYAGE_DIMENSION)
    assert [len(request["input"]) for request in api.requests] == calls
    assert [text for request in api.requests for text in request["input"]] == texts


def test_it_says_which_vectors_it_makes_and_takes_any_language(voyage: VoyageEmbedder) -> None:
    assert voyage.fingerprint.embedder_id == "voyage-3.5"
    assert voyage.fingerprint.dimension == 1024
    assert voyage.languages == frozenset()


# S27: outages at ingest.


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_ingest_waits_and_tries_again_until_the_outage_is_over(
    voyage: VoyageEmbedder, api: FakeVoyage, waits: list[float], status: int
) -> None:
    api.script = [voyage_error(status, "slow down")] * 2
    matrix = voyage.embed_passages(["one", "two"])
    np.testing.assert_allclose(matrix, _expected("one", "two"), atol=1e-6)
    assert [request["input"] for request in api.requests] == [["one", "two"]] * 3
    assert len(waits) == 2
    assert all(wait > 0 for wait in waits)


def test_an_ingest_gives_up_on_an_outage_that_lasts(
    voyage: VoyageEmbedder, api: FakeVoyage
) -> None:
    api.script = [voyage_error(429, "slow down")] * 100
    with pytest.raises(ModelError, match=r"voyage-3\.5: RateLimitError"):
        voyage.embed_passages(["one"])
    assert 3 <= len(api.requests) <= 10


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "AuthenticationError"), (400, "InvalidRequestError")]
)
def test_an_ingest_does_not_repeat_what_cannot_succeed(
    voyage: VoyageEmbedder, api: FakeVoyage, status: int, kind: str
) -> None:
    api.script = [voyage_error(status, "no")]
    with pytest.raises(ModelError, match=kind):
        voyage.embed_passages(["one"])
    assert len(api.requests) == 1


# S27: outages at query.


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (429, "rate_limited"),
        (401, "wrong_key"),
        (400, "embedder_failed"),
        (403, "embedder_failed"),
        (500, "embedder_failed"),
        (503, "embedder_failed"),
    ],
)
def test_a_query_is_tried_once_and_the_outage_gets_its_reason(
    voyage: VoyageEmbedder, api: FakeVoyage, waits: list[float], status: int, reason: str
) -> None:
    api.script = [voyage_error(status, "no")]
    with pytest.raises(StageUnavailable) as caught:
        voyage.embed_query(QUERY)
    assert (caught.value.stage, caught.value.reason) == ("dense", reason)
    assert len(api.requests) == 1
    assert waits == []


def test_a_query_that_gets_no_answer_times_out_after_one_try(
    voyage: VoyageEmbedder, api: FakeVoyage
) -> None:
    api.script = [api.hang]
    with pytest.raises(StageUnavailable) as caught:
        voyage.embed_query(QUERY)
    assert caught.value.reason == "timeout"
    assert len(api.requests) == 1


def test_a_query_that_comes_in_drops_times_out_as_a_whole(
    voyage: VoyageEmbedder, api: FakeVoyage
) -> None:
    # Each read is in time; all of them together never end.
    api.script = [api.trickle]
    with pytest.raises(StageUnavailable) as caught:
        voyage.embed_query(QUERY)
    assert caught.value.reason == "timeout"
    assert len(api.requests) == 1


def test_while_eight_queries_hang_the_ninth_is_refused_at_once_and_later_ones_are_answered(
    api: FakeVoyage,
) -> None:
    eight = [api.hang] * 8
    api.script = [*eight]
    with api.running() as url:
        voyage = VoyageEmbedder(SPEC, KEY, url, query_timeout_s=5)
        with ThreadPoolExecutor(8) as callers:
            waiting = [callers.submit(voyage.embed_query, QUERY) for _ in eight]
            assert api.wait_for_requests(8)
            with pytest.raises(StageUnavailable) as caught:
                voyage.embed_query("the ninth")
            assert caught.value.reason == "overloaded"
            assert [body["input"] for body in api.requests] == [[QUERY]] * 8
            api.release()
            for call in waiting:
                np.testing.assert_allclose(call.result(), _expected(QUERY)[0], atol=1e-6)
        np.testing.assert_allclose(voyage.embed_query(QUERY), _expected(QUERY)[0], atol=1e-6)


def test_a_server_that_is_not_there_is_a_failed_embedder() -> None:
    with FakeVoyage().running() as url:
        pass
    voyage = VoyageEmbedder(SPEC, KEY, url, query_timeout_s=0.3)
    with pytest.raises(StageUnavailable) as caught:
        voyage.embed_query(QUERY)
    assert caught.value.reason == "embedder_failed"


def test_the_query_after_an_outage_is_answered(voyage: VoyageEmbedder, api: FakeVoyage) -> None:
    api.script = [voyage_error(429, "slow down")]
    with pytest.raises(StageUnavailable):
        voyage.embed_query(QUERY)
    np.testing.assert_allclose(voyage.embed_query(QUERY), _expected(QUERY)[0], atol=1e-6)


GOOD_ROW = [1.0] * VOYAGE_DIMENSION
BROKEN: dict[str, tuple[int, bytes]] = {
    "too few dimensions": voyage_reply([[1.0] * (VOYAGE_DIMENSION - 1)]),
    "too many dimensions": voyage_reply([[1.0] * (2 * VOYAGE_DIMENSION)]),
    "no dimensions": voyage_reply([[]]),
    "no vectors": voyage_reply([]),
    "a vector too many": voyage_reply([GOOD_ROW, GOOD_ROW]),
    "rows of unlike lengths": voyage_reply([GOOD_ROW, [1.0]]),
    "null for a vector": voyage_reply([None]),
    "words for numbers": voyage_reply([["a"] * VOYAGE_DIMENSION]),
    "null for a number": voyage_reply([[None, *GOOD_ROW[1:]]]),
    "zeros": voyage_reply([[0.0] * VOYAGE_DIMENSION]),
    "NaN": (200, voyage_reply([GOOD_ROW])[1].replace(b"1.0", b"NaN", 1)),
    "infinity": (200, voyage_reply([GOOD_ROW])[1].replace(b"1.0", b"Infinity", 1)),
    "not base64": voyage_reply(["%%%"]),
    "no data": (200, b'{"object": "list", "usage": {"total_tokens": 1}}'),
    "no object": (200, b"[]"),
    "no JSON": (200, b"<html>proxy error</html>"),
    "nothing": (200, b""),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_to_a_query_is_an_unavailable_stage(
    voyage: VoyageEmbedder, api: FakeVoyage, answer: tuple[int, bytes]
) -> None:
    api.script = [lambda _: answer]
    with pytest.raises(StageUnavailable) as caught:
        voyage.embed_query(QUERY)
    assert caught.value.stage == "dense"
    assert len(api.requests) == 1


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_to_an_ingest_is_an_error_and_never_a_row(
    voyage: VoyageEmbedder, api: FakeVoyage, answer: tuple[int, bytes]
) -> None:
    api.script = [lambda _: answer]
    with pytest.raises(RetrievalError):
        voyage.embed_passages(["one"])


def _quotes(status: int) -> Behaviour:
    """Behave like a vendor who repeats the input, and the key, in the error message."""
    return lambda body: (status, json.dumps({"detail": f"{body['input']} of {KEY}"}).encode())


@pytest.mark.parametrize("status", [400, 401, 403, 422, 429, 500, 503])
def test_neither_query_nor_key_is_in_what_may_be_logged_of_an_error(
    voyage: VoyageEmbedder, api: FakeVoyage, status: int
) -> None:
    api.script = [_quotes(status)]
    with pytest.raises(StageUnavailable) as caught:
        voyage.embed_query(QUERY)
    logged = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "CANARY-7f3a" not in logged
    assert KEY not in logged
    assert caught.value.detail


def test_a_key_without_the_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("voyageai", "voyageai.client"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelError, match="embeddings-cloud"):
        VoyageEmbedder(SPEC, KEY)
