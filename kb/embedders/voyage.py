"""Voyage AI's embedding API."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from kb.embedders.vectors import fingerprint_of, normalise
from kb.errors import ModelError, StageUnavailable
from kb.models import ModelSpec
from kb.types import Matrix, Vector

if TYPE_CHECKING:
    from voyageai.client import Client

BATCH_TEXTS = 128
"""Texts a call (voyageai.VOYAGE_EMBED_BATCH_SIZE)."""
BATCH_CHARACTERS = 200_000
"""Characters a call: under 320,000 tokens even at less than a character a token."""

_QUERIES_AT_ONCE = 8
_INGEST_ATTEMPTS = 6
_INGEST_TIMEOUT_S = 60.0


class VoyageEmbedder:
    """Embed over HTTP: patient and retrying for passages, one bounded try for a query.

    Args:
        spec: the catalogue's entry.
        api_key: the account's key; never logged.
        base_url: another address of the API, for a proxy or a test.
        query_timeout_s: how long a query may take in all, so that time is left for another
            vector space.

    Raises:
        ModelError: the extra ``embeddings-cloud`` is not installed.
    """

    def __init__(
        self,
        spec: ModelSpec,
        api_key: str,
        base_url: str | None = None,
        query_timeout_s: float = 0.3,
    ) -> None:
        try:
            from voyageai.client import Client
        except ImportError as error:
            raise ModelError(
                "VOYAGE_API_KEY is set but voyageai is not installed: "
                "pip install 'adherence-retrieval[embeddings-cloud]'"
            ) from error
        self.fingerprint = fingerprint_of(spec)
        self.languages = spec.languages
        self._query_timeout_s = query_timeout_s
        # The client's timeout is one of each read: a slow trickle would never end.
        self._queries = ThreadPoolExecutor(_QUERIES_AT_ONCE, thread_name_prefix="voyage")
        self._free = threading.BoundedSemaphore(_QUERIES_AT_ONCE)
        # The client's own defaults are no retry and no timeout at all.
        self._query_client = Client(
            api_key=api_key, max_retries=1, timeout=query_timeout_s, base_url=base_url
        )
        self._ingest_client = Client(
            api_key=api_key,
            max_retries=_INGEST_ATTEMPTS,
            timeout=_INGEST_TIMEOUT_S,
            base_url=base_url,
        )

    def embed_query(self, text: str) -> Vector:
        """Embed with ``input_type="query"``, once. Raises StageUnavailable with the reason."""
        if not self._free.acquire(blocking=False):
            raise StageUnavailable("dense", "overloaded", f"{_QUERIES_AT_ONCE} queries wait")
        call = self._queries.submit(self._call, self._query_client, [text], "query")
        call.add_done_callback(lambda _: self._free.release())
        try:
            vector: Vector = call.result(self._query_timeout_s)[0]
        except TimeoutError:
            raise StageUnavailable("dense", "timeout", self.fingerprint.embedder_id) from None
        except ModelError as error:
            raise StageUnavailable("dense", _reason(error.__cause__), str(error)) from None
        return vector

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        """Embed with ``input_type="document"``, in batches, with retries. Raises ModelError."""
        batches = [self._call(self._ingest_client, batch, "document") for batch in _batches(texts)]
        if not batches:
            return np.empty((0, self.fingerprint.dimension), np.float32)
        return np.concatenate(batches)

    def _call(self, client: Client, texts: list[str], input_type: str) -> Matrix:
        model = self.fingerprint.embedder_id
        try:
            vectors: list[Any] = client.embed(texts, model=model, input_type=input_type).embeddings
        except Exception as error:
            # The vendor's message may quote the text: only the error's kind goes on.
            raise ModelError(f"{model}: {type(error).__name__} from the API") from error
        try:
            array = np.asarray(vectors, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{model}: the API gave no matrix of numbers") from error
        expected = (len(texts), self.fingerprint.dimension)
        if array.shape != expected:
            raise ModelError(f"{model}: the API gave shape {array.shape}, not {expected}")
        return normalise(array)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch, characters = list[str](), 0
    for text in texts:
        full = len(batch) == BATCH_TEXTS or characters + len(text) > BATCH_CHARACTERS
        if batch and full:
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


_REASONS = {
    "AuthenticationError": "wrong_key",
    "RateLimitError": "rate_limited",
    "Timeout": "timeout",
}


def _reason(cause: BaseException | None) -> str:
    return _REASONS.get(type(cause).__name__, "embedder_failed")
