"""Every knob: where it comes from, and what it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import serve
from kb.errors import InputError, SettingsError
from kb.stores.factory import StoreConfig
from serve.settings import LIVE_SETTINGS, Settings, change_live, load_settings


def load(
    given: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    overrides: dict[str, Any] | None = None,
) -> Settings:
    return load_settings(given, environ or {}, overrides)


def test_without_a_word_everything_is_on_and_no_floor_is_set() -> None:
    settings = load()

    assert settings.retrieval_hybrid_enabled
    assert settings.rerank_enabled
    assert settings.ingest_on_start
    assert settings.min_similarity is None
    assert settings.rerank_budget_ms == 150
    assert settings.trace_exporter == "none"
    assert settings.voyage_base_url is None


def test_the_shipped_cards_of_every_language_are_the_default() -> None:
    for locale in ("en", "es-419", "pt-BR"):
        assert list(load().kb_cards.glob(f"{locale}/*.md"))


def test_the_embedded_store_and_a_space_for_each_kind_of_embedder_are_the_default() -> None:
    settings = load()

    assert (settings.kb_store, settings.keep_generations) == ("chroma", 3)
    assert settings.embedder_models == (
        "voyage-3.5",
        "bge-small-en-v1.5|BAAI/bge-small-en-v1.5",
        "multilingual-e5-small",
    )


def test_every_place_is_absolute() -> None:
    settings = load({"kb_home": "here", "trace_file": "t"}, {"MODEL_HOME": "m"}, {"kb_cards": "c"})

    places = (settings.kb_home, settings.trace_file, settings.model_home, settings.kb_cards)
    assert places == tuple(Path.cwd() / name for name in ("here", "t", "m", "c"))


def test_the_calibration_is_the_shipped_one_unless_another_is_named() -> None:
    shipped = Path(serve.__file__).parent / "calibration.json"

    assert load().calibration_file == shipped
    assert load({}, {"CALIBRATION_FILE": "mine.json"}).calibration_file == Path.cwd() / "mine.json"
    assert load({"calibration_file": "/etc/c.json"}).calibration_file == Path("/etc/c.json")


def test_the_calibration_stays_while_the_service_runs() -> None:
    with pytest.raises(SettingsError, match="'calibration_file' cannot change while serving"):
        change_live(load(), {"calibration_file": "mine.json"})


@pytest.mark.parametrize(
    ("given", "environ", "overrides", "expected"),
    [
        ({}, {}, {}, Settings.model_fields["rrf_k"].default),
        ({"rrf_k": 11}, {}, {}, 11),
        ({"rrf_k": 11}, {"RRF_K": "22"}, {}, 22),
        ({}, {"RRF_K": "22"}, {}, 22),
        ({"rrf_k": 11}, {"RRF_K": "22"}, {"rrf_k": "33"}, 33),
        ({"rrf_k": 11}, {}, {"rrf_k": "33"}, 33),
    ],
)
def test_flags_win_over_the_environment_over_the_file_over_the_default(
    given: dict[str, Any], environ: dict[str, str], overrides: dict[str, Any], expected: float
) -> None:
    assert load(given, environ, overrides).rrf_k == expected


def test_only_the_names_of_settings_are_read_from_the_environment() -> None:
    assert load({}, {"PATH": "/bin", "rrf_k": "5", "RRF_KK": "5", "HOME": "/"}) == load()


@pytest.mark.parametrize("word", ["false", "False", "0", "no", "off"])
def test_the_switch_back_to_dense_only_is_one_word_in_the_environment(word: str) -> None:
    assert not load({}, {"RETRIEVAL_HYBRID_ENABLED": word}).retrieval_hybrid_enabled


@pytest.mark.parametrize("word", ["none", "None", "null", ""])
def test_a_word_for_nothing_clears_an_optional_setting(word: str) -> None:
    settings = load(
        {"min_similarity": 0.5, "voyage_base_url": "https://example.org"},
        {"MIN_SIMILARITY": word, "VOYAGE_BASE_URL": word},
    )

    assert settings.min_similarity is None
    assert settings.voyage_base_url is None


def test_a_list_of_models_is_written_with_commas() -> None:
    settings = load({}, {"EMBEDDER_MODELS": "BAAI/bge-small-en-v1.5,bge-small-en-v1.5"})

    assert settings.embedder_models == ("BAAI/bge-small-en-v1.5", "bge-small-en-v1.5")


def test_a_space_may_have_alternatives() -> None:
    settings = load({}, {"EMBEDDER_MODELS": "BAAI/bge-small-en-v1.5|bge-small-en-v1.5,voyage-3.5"})

    assert settings.embedder_models == ("BAAI/bge-small-en-v1.5|bge-small-en-v1.5", "voyage-3.5")


@pytest.mark.parametrize("models", ["voyage-3.5|bge-smal", "bge-smal|voyage-3.5", "voyage-3.5||"])
def test_an_alternative_that_is_not_in_the_catalogue_is_refused(models: str) -> None:
    with pytest.raises(SettingsError, match=r"unknown model '(bge-smal)?'"):
        load({"embedder_models": models})


@pytest.mark.parametrize("name", ["embedder_models", "reranker_models"])
def test_a_model_that_is_not_in_the_catalogue_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"unknown model 'bge-smal'.*bge-small-en-v1\.5"):
        load({name: ["bge-smal"]})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("rrk_k", "rrf_k"),
        ("retrieval_hybrid_enable", "retrieval_hybrid_enabled"),
        ("RRF_K", None),
        ("completely_else", None),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, near: str | None) -> None:
    with pytest.raises(SettingsError) as error:
        load({name: 1})

    assert f"unknown setting {name!r}" in str(error.value)
    assert near is None or f"did you mean {near!r}?" in str(error.value)


IMPOSSIBLE: list[tuple[str, Any]] = [
    ("rrf_k", 0),
    ("rrf_k", -60),
    ("rrf_k", "sixty"),
    ("rrf_k", "nan"),
    ("rrf_k", "inf"),
    ("bm25_weight", -0.1),
    ("bm25_weight", "nan"),
    ("dense_weight", -0.1),
    ("candidate_multiplier", 0),
    ("candidate_multiplier", 1.5),
    ("candidate_max", 0),
    ("reranker_max_input", -1),
    ("min_similarity", 1.01),
    ("min_similarity", -1.01),
    ("min_similarity", "nan"),
    ("deadline_ms", 0),
    ("leg_timeout_ms", 0),
    ("rerank_budget_ms", -1),
    ("rerank_budget_ms", "soon"),
    ("retrieval_hybrid_enabled", "perhaps"),
    ("rerank_enabled", 2),
    ("trace_exporter", "printer"),
    ("model_threads", 0),
    ("embedder_models", 7),
    ("embedder_timeout_ms", 4),
    ("kb_store", "sqlite"),
    ("kb_namespace", ""),
    ("kb_namespace", "a"),
    ("kb_namespace", "Adherence"),
    ("kb_namespace", "a_b"),
    ("kb_namespace", "a" * 25),
    ("kb_namespace", "1a"),
    ("keep_generations", 1),
    ("keep_generations", 101),
    ("generation_poll_s", 0),
    ("generation_poll_s", "nan"),
]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_the_settings_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"setting '{name}'"):
        load({name: value})


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_an_impossible_value_in_the_environment_is_refused_alike(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name if name != "embedder_models" else "unknown model"):
        load({}, {name.upper(): str(value)})


def test_a_key_is_no_setting_and_its_value_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as error:
        load({"voyage_api_key": "canary-key"})

    assert "voyage_api_key" in str(error.value)
    assert "canary-key" not in str(error.value)


def test_the_embedder_is_made_as_the_settings_say() -> None:
    settings = load(
        {
            "model_home": "/models",
            "embedder_models": "bge-small-en-v1.5",
            "voyage_base_url": "https://example.org",
            "embedder_timeout_ms": 250,
            "model_threads": 2,
        }
    )

    config = settings.embedder_config()

    assert config.store.home == Path("/models")
    assert config.preference == ("bge-small-en-v1.5",)
    assert config.voyage_base_url == "https://example.org"
    assert config.query_timeout_s == 0.25
    assert config.threads == 2


def test_the_store_is_opened_as_the_settings_say() -> None:
    config = load(
        {"kb_home": "/kb", "kb_store": "pgvector", "kb_namespace": "team-a"}
    ).store_config()

    assert config == StoreConfig(Path("/kb"), "pgvector", "team-a")
    assert load({"kb_home": "/kb"}).store_config() == StoreConfig(Path("/kb"))


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_settings_do_not_change_in_place() -> None:
    with pytest.raises(ValidationError):
        load().rrf_k = 1.0  # type: ignore[misc]


LIVE: dict[str, Any] = {
    "retrieval_hybrid_enabled": False,
    "rerank_enabled": False,
    "fusion": "dbsf",
    "rrf_k": 11.0,
    "bm25_weight": 0.7,
    "dense_weight": 2.0,
    "dense_weight_by_embedder": {"bge-small-en-v1.5": 2.0},
    "cross_language_bm25_weight": 0.2,
    "rerank_weight": 0.3,
    "candidate_multiplier": 3,
    "candidate_max": 30,
    "reranker_max_input": 5,
    "min_similarity": 0.4,
    "min_similarity_by_embedder": {"bge-small-en-v1.5": 0.6},
    "deadline_ms": 800,
    "leg_timeout_ms": 300,
    "rerank_budget_ms": 90,
}


def test_what_steers_a_request_can_change_while_serving_and_nothing_else_can() -> None:
    assert set(LIVE) == LIVE_SETTINGS <= set(Settings.model_fields)


@pytest.mark.parametrize(("name", "value"), LIVE.items())
def test_a_live_change_changes_that_alone(name: str, value: Any) -> None:
    before = load()

    after = change_live(before, {name: value})

    assert getattr(after, name) == value
    assert after.model_dump(exclude={name}) == before.model_dump(exclude={name})
    assert before == load()


def test_no_change_is_a_change_too() -> None:
    assert change_live(load(), {}) == load()


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - LIVE_SETTINGS))
def test_what_replicas_are_built_from_cannot_change_while_serving(name: str) -> None:
    before = load()

    with pytest.raises(SettingsError, match=f"{name!r} cannot change while serving"):
        change_live(before, {name: getattr(before, name)})


def test_an_unknown_live_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match="did you mean 'retrieval_hybrid_enabled'"):
        change_live(load(), {"retrieval_hybrid_enable": False})


def test_an_impossible_live_value_is_refused() -> None:
    with pytest.raises(SettingsError, match="'rrf_k'"):
        change_live(load(), {"rrf_k": 0})


@pytest.mark.parametrize(
    "address", ["https://[x", "proxy.example.org", "file:///etc", "https://a b"]
)
def test_an_address_that_is_none_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(SettingsError, match="voyage_base_url"):
        load({"voyage_base_url": address})


def test_a_public_address_shows_its_host_alone() -> None:
    settings = load({"voyage_base_url": "https://user:secret@proxy.example.org:8443/v1"})

    assert settings.public()["voyage_base_url"] == "proxy.example.org"
