"""The in-the-box cross-encoder: ms-marco-MiniLM-L-12-v2 on onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deployments.engines.cross_encoder import MAX_QUERY_TOKENS
from kb.models import ModelSpec
from kb.onnx_text import OnnxTextModel

_SPECIAL_TOKENS = 3


@dataclass(frozen=True, slots=True)
class OnnxPair:
    """The ids of one input and how many of them belong to the query."""

    ids: tuple[int, ...]
    query_length: int

    @property
    def tokens(self) -> int:
        """Length of the model's input."""
        return len(self.ids)


class OnnxPairModel:
    """Give raw logits of a BERT-like ONNX cross-encoder.

    Raises:
        ModelError: a file is missing or cannot be loaded.
    """

    def __init__(self, spec: ModelSpec, folder: Path, threads: int = 1) -> None:
        self.model_id = spec.id
        self.languages = spec.languages
        self._model = OnnxTextModel(folder, spec.max_tokens, threads)

    def prepare(self, query: str, passages: Sequence[str]) -> Iterator[OnnxPair]:
        """Tokenise; the query takes at most half of the window, the passage loses its tail."""
        room = self._model.max_tokens - _SPECIAL_TOKENS
        query_ids = self._model.token_ids(query)[: min(MAX_QUERY_TOKENS, room // 2)]
        rest = room - len(query_ids)
        for passage in passages:
            ids = self._model.frame(query_ids, self._model.token_ids(passage)[:rest])
            yield OnnxPair(tuple(ids), len(query_ids) + 2)

    def score(self, pair: OnnxPair) -> float:
        """Give the raw logit of one pair."""
        return float(np.ravel(self._model.run(pair.ids, pair.query_length))[0])
