"""Any sentence-transformers model from a folder of the model store."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from kb.embedders.vectors import fingerprint_of, normalise
from kb.errors import ModelError
from kb.models import HUB_FILES, ModelSpec
from kb.types import Matrix, Vector


class SentenceTransformerEmbedder:
    """Embed with a ``SentenceTransformer``; needs the extra ``embeddings-local``.

    Raises:
        ModelError: the library or a file is missing, or the dimension is not the catalogue's.
    """

    def __init__(self, spec: ModelSpec, folder: Path, threads: int = 1) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Serving never downloads.
        try:
            import torch
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ModelError(
                f"{spec.id} needs sentence-transformers: "
                "pip install 'adherence-retrieval[embeddings-local]'"
            ) from error
        torch.set_num_threads(threads)
        self.fingerprint = fingerprint_of(spec)
        self.languages = spec.languages
        for name in ("modules.json", *HUB_FILES):
            # Without its modules.json, say, the library would make up another pooling.
            if not (folder / name).is_file():
                raise ModelError(f"{folder / name} is missing")
        try:
            self._model = SentenceTransformer(
                str(folder), device="cpu", local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # Each kind of damage has an error of another library.
            raise ModelError(f"{folder} cannot be loaded: {type(error).__name__}") from error
        self._model.max_seq_length = spec.max_tokens
        self._in_use = threading.Lock()  # Its tokenizer is changed by each call.
        self._check_dimension(spec)

    def embed_query(self, text: str) -> Vector:
        """Embed a query, with the model's query prefix."""
        vector: Vector = self._embed([self.fingerprint.query_prefix + text])[0]
        return vector

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        """Embed passages, with the model's passage prefix."""
        return self._embed([self.fingerprint.passage_prefix + text for text in texts])

    def _embed(self, texts: list[str]) -> Matrix:
        with self._in_use:
            vectors = self._model.encode(
                texts, convert_to_numpy=True, show_progress_bar=False, batch_size=16
            )
        return normalise(vectors.reshape(len(texts), self.fingerprint.dimension))

    def _check_dimension(self, spec: ModelSpec) -> None:
        dimension = self._model.get_embedding_dimension()
        if dimension != spec.dimension:
            raise ModelError(
                f"{spec.id} makes {dimension} dimensions, the catalogue says {spec.dimension}"
            )
