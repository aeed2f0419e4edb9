"""Start the real service as a user does, watch it, break it and stop it; only what we started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
MODELS = Path(os.environ.get("MODEL_HOME", ROOT / ".models")).absolute()

_READY_WITHIN_S = 180


def free_port() -> int:
    """Find a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class RunningService:
    """One `serve run` of a copy of the shipped configuration, on a port of its own."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The service's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What the service printed."""
        return self.folder / "serve.log"

    def write_config(self, user_config: dict[str, Any] | None = None) -> Path:
        """Copy the shipped configuration with our port and live settings."""
        config = yaml.safe_load((ROOT / "serve_config.yaml").read_text("utf-8"))
        config["http_options"]["port"] = self.port
        config["applications"][0]["deployments"][0]["user_config"] = user_config or {}
        path = self.folder / "serve_config.yaml"
        path.write_text(yaml.safe_dump(config), "utf-8")
        return path

    def start(self) -> None:
        """Start and wait until ready."""
        environ = {
            **os.environ,
            "MODEL_HOME": str(MODELS),
            "KB_HOME": str(self.folder / "kb"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "local",  # Never join a cluster that happens to run here.
            "PYTHONUNBUFFERED": "1",
            **self.environ,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "serve", "run", self.write_config()],
                cwd=ROOT,
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Poll `/readyz`; fail with the log's end when the process dies or time is up."""
        assert self.process is not None
        until = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.25)
        raise AssertionError(f"not ready; the log ends:\n{self.log.read_text()[-3000:]}")

    def deploy(self, user_config: dict[str, Any]) -> None:
        """Change live settings as an operator does."""
        subprocess.run(
            [BIN / "serve", "deploy", self.write_config(user_config)],
            cwd=ROOT,
            env={**os.environ, "RAY_AUTH_MODE": "token"},
            check=True,
            capture_output=True,
            timeout=60,
        )

    def retrieve(self, query: str, **fields: Any) -> dict[str, Any]:
        """Ask for cards; anything but 200 is an error."""
        body = {"query": query, **fields}
        response = httpx.post(f"{self.url}/v1/retrieve", json=body, timeout=15)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """Find the processes of a deployment's replicas among our own descendants."""
        assert self.process is not None
        title = f"ray::ServeReplica:adherence-retrieval:{deployment}"
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if any(part.startswith(title) for part in child.cmdline()):
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def ray_logs(self) -> Path:
        """Find the log folder of our Ray session, by the socket that our raylet was given."""
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children(recursive=True):
            for part in child.cmdline():
                session, found, _ = part.partition("/sockets/raylet")
                if found and "=" in session:
                    return Path(session.partition("=")[2]) / "logs"
        raise AssertionError("no raylet among our processes")

    def stop(self) -> int:
        """Ask it to stop, wait, and give its exit code; no child outlives it."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)  # A background shell's children ignore SIGINT.
        code = self.process.wait(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=20)
        for child in alive:
            child.kill()
        return code
