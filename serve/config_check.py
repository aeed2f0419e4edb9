"""Read ``serve_config.yaml`` strictly: Ray Serve ignores every key that it does not know."""

from __future__ import annotations

import difflib
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from kb.errors import SettingsError
from kb.strict_yaml import YamlProblem, load_yaml
from serve.settings import Settings, change_live, load_settings

DEPLOYMENTS = frozenset({"Ingress", "Bm25Retriever", "DenseRetriever", "Reranker"})


def check_config(path: Path) -> tuple[Settings, int]:
    """Check a configuration file and give its settings and its HTTP port.

    Raises:
        SettingsError: a key is unknown, a value impossible, or a deployment is none of ours; the
            message names the file and the key.
    """
    from ray.serve.schema import ServeDeploySchema

    data = _read(path)
    _refuse_unknown_keys(path, data, ServeDeploySchema, "")
    try:
        config = ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{path}: {where}: {first['msg']}") from None
    if len(config.applications) != 1:
        raise SettingsError(f"{path}: applications: there must be one")
    application = config.applications[0]
    try:
        settings = load_settings(application.args)
        for deployment in application.deployments:
            name = deployment.name
            if name not in DEPLOYMENTS:
                raise SettingsError(f"unknown deployment {name!r}{_hint(name, DEPLOYMENTS)}")
            if name == "Ingress" and isinstance(deployment.user_config, dict):
                change_live(settings, deployment.user_config)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    return settings, config.http_options.port


def _read(path: Path) -> dict[str, Any]:
    try:
        data = load_yaml(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not valid UTF-8") from None
    except YamlProblem as error:
        raise SettingsError(f"{path}:{error.line}: {error.problem}") from None
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: must be a mapping")
    return data


def _refuse_unknown_keys(path: Path, data: Any, model: type[BaseModel], where: str) -> None:
    """Walk the data beside the schema's models; only their fields may be there."""
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        place = f"{where}.{key}" if where else str(key)
        field = model.model_fields.get(key)
        if field is None:
            raise SettingsError(f"{path}: unknown key {place!r}{_hint(key, model.model_fields)}")
        if key == "runtime_env":
            _check_runtime_env(path, value, place)
        inner = _model_in(field.annotation)
        if inner is None:
            continue
        items = value if isinstance(value, list) else [value]
        for number, item in enumerate(items):
            suffix = f"[{number}]" if isinstance(value, list) else ""
            _refuse_unknown_keys(path, item, inner, place + suffix)


def _check_runtime_env(path: Path, data: Any, where: str) -> None:
    """Refuse unknown keys of a runtime environment, which Serve's schema leaves a plain mapping."""
    from ray.runtime_env import RuntimeEnv

    for key in data or {}:
        if key not in RuntimeEnv.known_fields:
            hint = _hint(key, RuntimeEnv.known_fields)
            raise SettingsError(f"{path}: unknown key {f'{where}.{key}'!r}{hint}")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the model inside ``Model | None``, ``list[Model]`` and the like."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    for argument in typing.get_args(annotation):
        if (found := _model_in(argument)) is not None:
            return found
    return None


def _hint(name: object, known: Any) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
