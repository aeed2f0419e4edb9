"""Start the real servers that stores talk to, on this machine, and stop them by id."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from pgserver.postgres_server import PostgresServer as _Postgres

_START_S = 30.0
_STOP_S = 10.0


def scratch_folder(prefix: str) -> Path:
    """Make a folder, in memory where the machine offers it: databases wait for each write."""
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a private folder in it
    return Path(tempfile.mkdtemp(prefix=prefix, dir=memory if memory.is_dir() else None))


def free_port() -> int:
    """Find a port that nobody listens at on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ChromaServer:
    """``chroma run`` on loopback, in a folder of its own; it keeps its rows over a restart."""

    def __init__(self) -> None:
        self._folder = scratch_folder("chroma-")
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and wait until it answers. Raises RuntimeError when it does not."""
        program = Path(sys.executable).with_name("chroma")
        self._process = subprocess.Popen(
            [
                *(str(program), "run", "--path", str(self._folder)),
                *("--host", "127.0.0.1", "--port", str(self._port)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        give_up = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                raise RuntimeError("chroma run does not answer")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the process that `start` started."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def remove(self) -> None:
        """Stop it and delete its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/heartbeat", timeout=1.0).is_success
        except httpx.HTTPError:
            return False


class PostgresServer:
    """PostgreSQL with pgvector behind a Unix socket, in a folder of its own."""

    def __init__(self) -> None:
        self._folder = scratch_folder("postgres-")
        self._server: _Postgres | None = None
        self.url = ""

    def start(self) -> None:
        """Start it and wait until it answers."""
        with warnings.catch_warnings():
            # It looks for a folder of the login session when it is imported; a container has none.
            warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR is not set")
            from pgserver.postgres_server import get_server

        self._server = get_server(self._folder / "data")
        self.url = self._server.get_uri()

    def stop(self) -> None:
        """End the server that `start` started."""
        if self._server is not None:
            self._server.cleanup()
        self._server = None

    def remove(self) -> None:
        """Stop it and delete its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
