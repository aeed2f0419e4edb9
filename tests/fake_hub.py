"""A Hugging Face hub with one model repository, on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit


class FakeHub:
    """Serve the files below a folder as a repository that has exactly one commit.

    Args:
        repository: owner and name.
        commit: 40 hexadecimal digits; any other revision is answered as the hub does.
        folder: the repository's files.
        unavailable: files that are listed and cannot be had.
    """

    def __init__(
        self, repository: str, commit: str, folder: Path, unavailable: frozenset[str] = frozenset()
    ) -> None:
        self.served: list[str] = []
        self._repository = repository
        self._commit = commit
        self._folder = folder
        self._unavailable = unavailable
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub._answer(self, with_body=True)

            def do_HEAD(self) -> None:
                hub._answer(self, with_body=False)

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        api = f"/api/models/{self._repository}"
        files = f"/{self._repository}/resolve/{self._commit}/"
        if path in {f"{api}/revision/{self._commit}", f"{api}/tree/{self._commit}"}:
            listing = self._listing()
            info = {
                "id": self._repository,
                "sha": self._commit,
                "siblings": [{"rfilename": entry["path"]} for entry in listing],
            }
            self._send(request, json.dumps(listing if "/tree/" in path else info).encode(), True)
        elif path.startswith(files) and self._has(name := path.removeprefix(files)):
            if with_body:
                self.served.append(name)
            self._send(request, (self._folder / name).read_bytes(), with_body)
        else:
            known = path.startswith((f"{api}/", f"/{self._repository}/"))
            request.send_response(404)
            request.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            request.send_header("Content-Length", "0")
            request.end_headers()

    def _has(self, name: str) -> bool:
        return name not in self._unavailable and (self._folder / name).is_file()

    def _listing(self) -> list[dict[str, str | int]]:
        return [
            {
                "type": "file",
                "path": path.relative_to(self._folder).as_posix(),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.name.encode(), usedforsecurity=False).hexdigest(),
            }
            for path in sorted(self._folder.rglob("*"))
            if path.is_file()
        ]

    def _send(self, request: BaseHTTPRequestHandler, body: bytes, with_body: bool) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        request.send_header("X-Repo-Commit", self._commit)
        request.end_headers()
        if with_body:
            request.wfile.write(body)
