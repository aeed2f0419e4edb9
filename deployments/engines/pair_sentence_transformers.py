"""Any sentence-transformers cross-encoder from a folder of the model store."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deployments.engines.cross_encoder import MAX_QUERY_TOKENS
from kb.errors import ModelError
from kb.models import ModelSpec

_SPECIAL_TOKENS = 3


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query, already cut to its share of the window, and a passage."""

    query: str
    passage: str
    tokens: int


class SentenceTransformersPairModel:
    """Give raw logits of a ``CrossEncoder``; needs the extra ``embeddings-local``.

    Raises:
        ModelError: the library is missing.
    """

    def __init__(self, spec: ModelSpec, folder: Path, threads: int = 1) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Serving never downloads.
        try:
            import torch
            from sentence_transformers import CrossEncoder
        except ImportError as error:
            raise ModelError(
                f"{spec.id} needs sentence-transformers: "
                "pip install 'adherence-retrieval[embeddings-local]'"
            ) from error
        torch.set_num_threads(threads)
        self.model_id = spec.id
        self.languages = spec.languages
        self._max_tokens = spec.max_tokens
        # Some configurations apply a sigmoid in predict() and some do not; the identity makes every
        # model give its logit, and the sigmoid is taken once, where the answer is made.
        self._raw = torch.nn.Identity()
        self._model = CrossEncoder(
            str(folder),
            device="cpu",
            max_length=spec.max_tokens,
            local_files_only=True,
            trust_remote_code=False,
            activation_fn=self._raw,
        )
        self._in_use = threading.Lock()  # Its tokenizer is changed by each call.

    def prepare(self, query: str, passages: Sequence[str]) -> Iterator[TextPair]:
        """Count tokens; the query takes at most half of the window."""
        query_ids = self._token_ids(query)
        room = min(MAX_QUERY_TOKENS, self._max_tokens // 2)
        if len(query_ids) > room:
            query_ids = query_ids[:room]
            query = self._model.tokenizer.decode(query_ids)
        for passage in passages:
            length = len(query_ids) + len(self._token_ids(passage)) + _SPECIAL_TOKENS
            yield TextPair(query, passage, min(self._max_tokens, length))

    def score(self, pair: TextPair) -> float:
        """Give the raw logit of one pair."""
        with self._in_use:
            scores = self._model.predict(
                [(pair.query, pair.passage)], activation_fn=self._raw, show_progress_bar=False
            )
        return float(scores[0])

    def _token_ids(self, text: str) -> list[int]:
        with self._in_use:
            ids: list[int] = self._model.tokenizer.encode(text, add_special_tokens=False)
        return ids
