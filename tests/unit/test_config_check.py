"""``serve_config.yaml`` read strictly. The one unit test that may import Ray's schema."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kb.errors import InputError, SettingsError
from serve.config_check import DEPLOYMENTS, check_config
from serve.settings import Settings

SHIPPED = Path(__file__).parents[2] / "serve_config.yaml"
CORES = 2


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def check(tmp_path: Path) -> Callable[[Any], tuple[Settings, int]]:
    """Check a configuration that is not a file yet."""

    def write_and_check(data: Any) -> tuple[Settings, int]:
        path = tmp_path / "config.yaml"
        path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), "utf-8")
        return check_config(path)

    return write_and_check


def shipped() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(SHIPPED.read_text("utf-8"))
    return data


def at(data: Any, *place: str | int) -> Any:
    for part in place:
        data = data[part]
    return data


APPLICATION = ("applications", 0)
INGRESS = (*APPLICATION, "deployments", 0)
RERANKER = (*APPLICATION, "deployments", 3)


def test_the_shipped_file_is_sound() -> None:
    settings, port = check_config(SHIPPED)

    assert port == 8000
    assert settings.retrieval_hybrid_enabled


def test_the_shipped_file_names_the_four_deployments() -> None:
    names = [deployment["name"] for deployment in at(shipped(), *APPLICATION, "deployments")]

    assert sorted(names) == sorted(DEPLOYMENTS)
    assert names[0] == "Ingress"
    assert names[3] == "Reranker"


def test_the_shares_of_the_shipped_file_leave_room_for_one_more_replica_of_any() -> None:
    shares = {
        deployment["name"]: (
            deployment["num_replicas"],
            deployment["ray_actor_options"]["num_cpus"],
        )
        for deployment in at(shipped(), *APPLICATION, "deployments")
    }

    in_all = sum(replicas * share for replicas, share in shares.values())
    assert in_all + max(share for _, share in shares.values()) <= CORES + 1e-9


def test_the_shipped_file_is_reached_from_this_machine_only() -> None:
    assert at(shipped(), "http_options", "host") == "127.0.0.1"


@pytest.mark.parametrize(
    ("place", "key", "near"),
    [
        ((), "http_optionz", "http_options"),
        ((), "application", "applications"),
        (("http_options",), "request_timeout", "request_timeout_s"),
        (("http_options",), "prot", "port"),
        (("logging_config",), "log_levle", "log_level"),
        (APPLICATION, "route_prefx", "route_prefix"),
        (APPLICATION, "import_pth", "import_path"),
        (INGRESS, "max_ongoing_request", "max_ongoing_requests"),
        (INGRESS, "num_replica", "num_replicas"),
        (INGRESS, "user_confg", "user_config"),
        ((*INGRESS, "backpressure_config"), "retry_after", "retry_after_s"),
        ((*RERANKER, "ray_actor_options"), "num_cpu", "num_cpus"),
        ((*RERANKER, "autoscaling_config"), "max_replica", "max_replicas"),
        ((*RERANKER, "autoscaling_config"), "target_ongoing_request", "target_ongoing_requests"),
        ((*APPLICATION, "runtime_env"), "env_varz", "env_vars"),
    ],
)
def test_a_key_that_ray_serve_would_ignore_is_refused_by_file_and_key(
    check: Callable[[Any], object], place: tuple[str | int, ...], key: str, near: str
) -> None:
    data = shipped()
    if "autoscaling_config" in place:
        del at(data, *RERANKER)["num_replicas"]
        at(data, *RERANKER)["autoscaling_config"] = {"min_replicas": 1, "max_replicas": 8}
    check(data)  # All that is wrong with it is the key.
    at(data, *place)[key] = copy.deepcopy(at(data, *place).get(near, 1))

    with pytest.raises(SettingsError) as error:
        check(data)

    assert "config.yaml: " in str(error.value)
    assert key in str(error.value)
    assert near in str(error.value)


def test_an_unknown_setting_in_args_is_refused_by_file_and_name(
    check: Callable[[Any], object],
) -> None:
    data = shipped()
    at(data, *APPLICATION)["args"] = {"rerank_budget": 100}

    with pytest.raises(SettingsError, match=r"config\.yaml: unknown setting 'rerank_budget'.*_ms'"):
        check(data)


@pytest.mark.parametrize("args", [{"rrf_k": 0}, {"min_similarity": "high"}, {"model_threads": []}])
def test_an_impossible_setting_in_args_is_refused_by_file_and_name(
    check: Callable[[Any], object], args: dict[str, Any]
) -> None:
    data = shipped()
    at(data, *APPLICATION)["args"] = args

    with pytest.raises(SettingsError, match=rf"config\.yaml: setting '{next(iter(args))}'"):
        check(data)


def test_a_model_that_is_not_in_the_catalogue_is_refused_by_file_and_name(
    check: Callable[[Any], object],
) -> None:
    data = shipped()
    at(data, *APPLICATION)["args"] = {"reranker_models": ["bge-rerank"]}

    with pytest.raises(InputError, match=r"config\.yaml: .*'bge-rerank'"):
        check(data)


def test_a_deployment_that_is_none_of_ours_is_refused_by_file_and_name(
    check: Callable[[Any], object],
) -> None:
    data = shipped()
    at(data, *RERANKER)["name"] = "ReRanker"

    with pytest.raises(
        SettingsError, match=r"config\.yaml: unknown deployment 'ReRanker'.*'Reranker'"
    ):
        check(data)


@pytest.mark.parametrize(
    ("user_config", "named"),
    [
        ({"retrieval_hybrid_enable": False}, "retrieval_hybrid_enabled"),
        ({"kb_home": "/elsewhere"}, "kb_home"),
        ({"rrf_k": -1}, "rrf_k"),
    ],
)
def test_a_live_setting_that_cannot_be_is_refused_by_file_and_name(
    check: Callable[[Any], object], user_config: dict[str, Any], named: str
) -> None:
    data = shipped()
    at(data, *INGRESS)["user_config"] = user_config

    with pytest.raises(SettingsError) as error:
        check(data)

    assert "config.yaml: " in str(error.value)
    assert named in str(error.value)


def test_the_live_switch_is_accepted(check: Callable[[Any], object]) -> None:
    data = shipped()
    at(data, *INGRESS)["user_config"] = {"retrieval_hybrid_enabled": False}

    check(data)


def test_settings_and_port_come_from_the_file(
    check: Callable[[Any], tuple[Settings, int]],
) -> None:
    data = shipped()
    at(data, *APPLICATION)["args"] = {"rerank_budget_ms": 90, "kb_home": "/var/lib/kb"}
    at(data, "http_options")["port"] = 8123

    settings, port = check(data)

    assert settings.rerank_budget_ms == 90
    assert settings.kb_home == Path("/var/lib/kb")
    assert port == 8123


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (("http_options",), "port", "high"),
        ((), "applications", "all"),
        (INGRESS, "num_replicas", -1),
        (INGRESS, "max_ongoing_requests", "many"),
        ((*RERANKER, "ray_actor_options"), "num_cpus", "half"),
        (APPLICATION, "import_path", "build_app"),
    ],
)
def test_an_impossible_value_is_refused_by_file_and_place(
    check: Callable[[Any], object], place: tuple[str | int, ...], key: str, value: Any
) -> None:
    data = shipped()
    at(data, *place)[key] = value

    with pytest.raises(SettingsError, match=rf"config\.yaml: .*{key}"):
        check(data)


@pytest.mark.parametrize("count", [0, 2])
def test_there_is_one_application(check: Callable[[Any], object], count: int) -> None:
    data = shipped()
    (application,) = data["applications"]
    data["applications"] = [
        application | {"name": f"a{n}", "route_prefix": f"/{n}"} for n in range(count)
    ]

    with pytest.raises(SettingsError, match=r"config\.yaml: applications: there must be one"):
        check(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a mapping"),
        ("- a\n- b\n", "must be a mapping"),
        ("applications", "must be a mapping"),
        ("a: b\n  c: [", r"config\.yaml:2: invalid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", r"config\.yaml:1: invalid YAML"),
        ("1: 2\n", "unknown key"),
        ("a: \x00\n", "invalid YAML"),
        ("a: 2026-13-45\n", "config"),
        ("? [a]\n: b\n", "invalid YAML"),
    ],
)
def test_what_is_no_configuration_is_refused_by_file(
    check: Callable[[Any], object], text: str, said: str
) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        check(text)

    assert "config.yaml" in str(error.value)


def test_a_file_that_is_not_text_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"a: \xff\xfe\n")

    with pytest.raises(SettingsError, match=r"config\.yaml"):
        check_config(path)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        check_config(tmp_path / name)


def test_a_key_given_twice_is_refused_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("proxy_location: HeadOnly\nproxy_location: EveryNode\n", "utf-8")

    with pytest.raises(SettingsError, match=r"config\.yaml:2: .*there twice"):
        check_config(path)
