"""Open the store that the settings name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kb.errors import SettingsError
from kb.generations import Generations

StoreKind = Literal["chroma", "chroma-server", "qdrant", "pgvector"]
STORE_URL = "KB_STORE_URL"
QDRANT_KEY = "QDRANT_API_KEY"


@dataclass(frozen=True)
class StoreConfig:
    """Which store, and where.

    Addresses and keys are not in it: they may hold a password, and a deployment's arguments are
    shown by the dashboard. Each process reads them from its own environment.
    """

    home: Path
    kind: StoreKind = "chroma"
    namespace: str = "adherence"


def open_generations(config: StoreConfig, environ: Mapping[str, str] = os.environ) -> Generations:
    """Open the knowledge base; nothing is written until something is built.

    Raises:
        SettingsError: the store needs an address and ``KB_STORE_URL`` has none.
        StoreError: the server cannot be reached.
    """
    lock_file = config.home / "ingest.lock"
    if config.kind == "chroma":
        from kb.stores.chroma_embedded import ChromaEmbeddedStore
        from kb.stores.folder import FolderDocuments

        return Generations(
            FolderDocuments(config.home), ChromaEmbeddedStore(config.home), lock_file
        )
    url = environ.get(STORE_URL)
    if not url:
        raise SettingsError(f"kb_store={config.kind} needs {STORE_URL} in the environment")
    if config.kind == "chroma-server":
        from kb.stores.chroma_server import open_chroma_server

        return Generations(*open_chroma_server(url, config.namespace), lock_file)
    if config.kind == "qdrant":
        from kb.stores.qdrant import open_qdrant

        return Generations(*open_qdrant(url, environ.get(QDRANT_KEY), config.namespace), lock_file)
    from kb.stores.pgvector import open_pgvector

    return Generations(*open_pgvector(url, config.namespace), lock_file)
