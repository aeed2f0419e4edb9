"""Which embedder is made, and that no other touches a knowledge base's vectors."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes_kb import write_tiny_onnx_embedder
from kb.embedders.factory import EmbedderConfig, choose_embedder, embedder_of
from kb.embedders.vectors import fingerprint_of
from kb.errors import InputError, ModelError
from kb.models import HUB_FILES, ModelStore, find_spec

BGE = find_spec("bge-small-en-v1.5")
BGE_TORCH = find_spec("BAAI/bge-small-en-v1.5")
MINI_LM = find_spec("all-MiniLM-L6-v2")
VOYAGE = find_spec("voyage-3.5")
KEY = {"VOYAGE_API_KEY": "pa-canary-key"}
NO_KEY: dict[str, str] = {}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def config(store: ModelStore) -> EmbedderConfig:
    return EmbedderConfig(store, [BGE_TORCH.id, BGE.id])


def _install(store: ModelStore) -> None:
    write_tiny_onnx_embedder(store.folder(BGE), BGE.dimension)


def _install_for_torch(store: ModelStore) -> None:
    """Put down what makes the model present, but nothing that loads."""
    store.folder(BGE_TORCH).mkdir(parents=True)
    for name in HUB_FILES:
        (store.folder(BGE_TORCH) / name).write_text("{}", "utf-8")


# New vectors.


def test_a_voyage_key_wins_over_a_local_model(store: ModelStore, config: EmbedderConfig) -> None:
    _install(store)
    embedder = choose_embedder(config, KEY)
    assert embedder is not None
    assert embedder.fingerprint == fingerprint_of(VOYAGE)


@pytest.mark.parametrize("environ", [NO_KEY, {"VOYAGE_API_KEY": ""}])
def test_without_a_key_the_local_model_is_made(
    store: ModelStore, config: EmbedderConfig, environ: dict[str, str]
) -> None:
    _install(store)
    embedder = choose_embedder(config, environ)
    assert embedder is not None
    assert embedder.fingerprint == fingerprint_of(BGE)
    assert embedder.embed_query("warfarin").shape == (BGE.dimension,)


def test_without_key_and_model_there_is_no_embedder_and_no_complaint(
    config: EmbedderConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_embedder(config, NO_KEY) is None
    assert caplog.records == []


def test_voyage_in_the_preference_without_a_key_is_passed_over(store: ModelStore) -> None:
    _install(store)
    embedder = choose_embedder(EmbedderConfig(store, [VOYAGE.id, BGE.id]), NO_KEY)
    assert embedder is not None
    assert embedder.fingerprint.embedder_id == BGE.id


def test_a_model_that_does_not_load_leaves_the_next_with_one_warning_that_says_why(
    store: ModelStore,
    config: EmbedderConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    _install_for_torch(store)
    _install(store)
    with caplog.at_level(logging.WARNING):
        embedder = choose_embedder(config, NO_KEY)
    assert embedder is not None
    assert embedder.fingerprint.embedder_id == BGE.id
    (warning,) = (record.getMessage() for record in caplog.records)
    assert BGE_TORCH.id in warning
    assert "embeddings-local" in warning


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_broken_file_of_the_only_model_means_none_with_one_warning(
    store: ModelStore, config: EmbedderConfig, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    _install(store)
    (store.folder(BGE) / name).write_bytes(b"half a file")
    with caplog.at_level(logging.WARNING):
        assert choose_embedder(config, NO_KEY) is None
    (warning,) = (record.getMessage() for record in caplog.records)
    assert BGE.id in warning


def test_an_unknown_name_in_the_preference_is_said_and_not_skipped(store: ModelStore) -> None:
    with pytest.raises(InputError, match="'bge-huge'"):
        choose_embedder(EmbedderConfig(store, ["bge-huge"]), NO_KEY)


def test_a_key_without_the_client_is_said_and_not_worked_around(
    store: ModelStore, config: EmbedderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(store)
    for name in ("voyageai", "voyageai.client"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelError, match="embeddings-cloud"):
        choose_embedder(config, KEY)


def test_the_key_is_not_in_what_a_dashboard_shows_of_the_config(config: EmbedderConfig) -> None:
    assert KEY["VOYAGE_API_KEY"] not in repr(config)


# S22: the vectors of a knowledge base.


def test_a_knowledge_base_gets_the_embedder_that_made_it(
    store: ModelStore, config: EmbedderConfig
) -> None:
    _install(store)
    assert embedder_of(fingerprint_of(BGE), config, NO_KEY).fingerprint == fingerprint_of(BGE)
    assert embedder_of(fingerprint_of(VOYAGE), config, KEY).fingerprint == fingerprint_of(VOYAGE)


def test_a_voyage_key_set_later_does_not_take_over_a_local_knowledge_base(
    store: ModelStore, config: EmbedderConfig
) -> None:
    _install(store)
    embedder = embedder_of(fingerprint_of(BGE), config, KEY)
    assert embedder.fingerprint == fingerprint_of(BGE)
    assert embedder.embed_query("warfarin").shape == (384,)


def test_a_voyage_knowledge_base_without_a_key_names_embedder_and_variable(
    store: ModelStore, config: EmbedderConfig
) -> None:
    _install(store)
    with pytest.raises(ModelError) as caught:
        embedder_of(fingerprint_of(VOYAGE), config, NO_KEY)
    for word in ("voyage-3.5", "1024", "VOYAGE_API_KEY"):
        assert word in str(caught.value)


def test_an_absent_embedder_is_named_with_the_voyage_that_is_configured(
    config: EmbedderConfig,
) -> None:
    with pytest.raises(ModelError) as caught:
        embedder_of(fingerprint_of(BGE), config, KEY)
    for word in (BGE.id, "384", VOYAGE.id, f"retrieval models pull {BGE.id}", "retrieval ingest"):
        assert word in str(caught.value)


def test_an_absent_embedder_is_named_with_the_local_model_that_is_configured(
    store: ModelStore, config: EmbedderConfig
) -> None:
    _install(store)
    with pytest.raises(ModelError) as caught:
        embedder_of(fingerprint_of(MINI_LM), config, NO_KEY)
    assert MINI_LM.id in str(caught.value)
    assert BGE.id in str(caught.value)


def test_an_absent_embedder_is_named_when_none_is_configured(config: EmbedderConfig) -> None:
    with pytest.raises(ModelError, match=r"bge-small-en-v1\.5.*none"):
        embedder_of(fingerprint_of(BGE), config, NO_KEY)


@pytest.mark.parametrize(
    "changed",
    [
        {"revision": "an older one"},
        {"dimension": 512},
        {"query_prefix": "query: "},
        {"passage_prefix": "passage: "},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_embedder_that_changed_since_is_refused_and_both_are_named(
    store: ModelStore, config: EmbedderConfig, changed: dict[str, str]
) -> None:
    _install(store)
    made_by = replace(fingerprint_of(BGE), **changed)  # type: ignore[arg-type]
    with pytest.raises(ModelError) as caught:
        embedder_of(made_by, config, NO_KEY)
    assert str(made_by) in str(caught.value)
    assert str(fingerprint_of(BGE)) in str(caught.value)
    assert "retrieval ingest" in str(caught.value)


def test_a_knowledge_base_of_an_unknown_embedder_names_it(config: EmbedderConfig) -> None:
    made_by = replace(fingerprint_of(BGE), embedder_id="bge-huge")
    with pytest.raises(InputError, match="'bge-huge'"):
        embedder_of(made_by, config, NO_KEY)
