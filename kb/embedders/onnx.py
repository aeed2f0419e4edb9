"""The in-the-box embedder: BAAI/bge-small-en-v1.5 on onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kb.embedders.vectors import fingerprint_of, normalise
from kb.errors import ModelError
from kb.models import ModelSpec
from kb.onnx_text import OnnxTextModel
from kb.types import Matrix, Vector

_SPECIAL_TOKENS = 2


class OnnxEmbedder:
    """Embed with the [CLS] vector of a BERT-like ONNX model, as the bge models are trained to.

    Raises:
        ModelError: a file is missing or cannot be loaded.
    """

    def __init__(self, spec: ModelSpec, folder: Path, threads: int = 1) -> None:
        self.fingerprint = fingerprint_of(spec)
        self.languages = spec.languages
        self._model = OnnxTextModel(folder, spec.max_tokens, threads)

    def embed_query(self, text: str) -> Vector:
        """Embed a query, with the model's query prefix."""
        return self._embed(self.fingerprint.query_prefix + text)

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        """Embed passages, with the model's passage prefix."""
        prefix = self.fingerprint.passage_prefix
        rows = [self._embed(prefix + text) for text in texts]
        return np.stack(rows) if rows else np.empty((0, self.fingerprint.dimension), np.float32)

    def _embed(self, text: str) -> Vector:
        ids = self._model.token_ids(text)[: self._model.max_tokens - _SPECIAL_TOKENS]
        vector = normalise(self._model.run(self._model.frame(ids))[0])
        if vector.shape != (self.fingerprint.dimension,):
            raise ModelError(f"the model makes shape {vector.shape}, not {self.fingerprint}")
        return vector
