"""Documents as files under one folder."""

from __future__ import annotations

import os
from pathlib import Path

from kb.errors import StoreError

_BUILDING = ".new"


class FolderDocuments:
    """Keep each document in a file of its name; a write is an atomic rename."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def get(self, name: str) -> bytes | None:
        """Read a document; None when there is none. Raises StoreError."""
        path = self._home / name
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from error

    def put(self, name: str, data: bytes) -> None:
        """Write a document whole or not at all, after a loss of power too. Raises StoreError."""
        path = self._home / name
        building = path.with_name(path.name + _BUILDING)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with building.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            building.replace(path)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror})") from error

    def delete(self, name: str) -> None:
        """Delete a document, if it is there. Raises StoreError."""
        path = self._home / name
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise StoreError(f"{path}: cannot be deleted ({error.strerror})") from error

    def names(self) -> list[str]:
        """Name every document, and what a killed write of CURRENT left, in ascending order."""
        written = (p for p in self._home.glob("generations/*/*") if p.suffix != _BUILDING)
        files = [*self._home.glob("CURRENT*"), *written]
        return sorted(str(p.relative_to(self._home)) for p in files if p.is_file())
