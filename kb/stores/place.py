"""Say where a store is, and what went wrong there, without its secrets."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from kb.errors import StoreError

_LONGEST = 500


@dataclass(frozen=True, slots=True)
class Place:
    """A store and its address, as it may be shown; ``secrets`` never are."""

    store: str
    address: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.store} at {self.address}"

    @contextmanager
    def telling_errors(self, doing: str) -> Iterator[None]:
        """Turn whatever the engine or the network raises into a StoreError that says where."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise self.failure(doing, error) from self._cause(error)

    def failure(self, doing: str, error: Exception) -> StoreError:
        """Put an error into words, in one line and without secrets."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return StoreError(f"{self}: {doing} failed: {text[:_LONGEST]}")

    def _cause(self, error: Exception) -> Exception | None:
        # A log shows the cause's own words too.
        shown = "".join(traceback.format_exception(error))
        return None if any(secret in shown for secret in self.secrets) else error


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """The address of an HTTP server, its user and password taken out of it."""

    place: Place
    scheme: str
    host: str
    port: int | None
    path: str
    headers: dict[str, str] = field(repr=False)

    @property
    def url(self) -> str:
        """Give the address without user and password."""
        return f"{_origin(self.scheme, self.host, self.port)}{self.path}"


def read_http_address(store: str, url: str, *secrets: str | None) -> HttpAddress:
    """Take an address apart; a user and a password in it become a header.

    Raises:
        StoreError: it is no http or https address; it is not shown, as it may hold a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unreadable(store) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.path:
        raise _unreadable(store)
    headers = {}
    if parts.username or parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        secrets = (*secrets, parts.password, headers["Authorization"].removeprefix("Basic "))
    place = Place(store, _origin(parts.scheme, parts.hostname, port), spellings(*secrets))
    return HttpAddress(place, parts.scheme, parts.hostname, port, parts.path.rstrip("/"), headers)


def spellings(*secrets: str | None) -> tuple[str, ...]:
    """Give every form in which secrets may turn up in a message, the longest first."""
    given = [secret for secret in secrets if secret]
    forms = {form for s in given for form in (s, unquote(s), quote(s), quote(s, safe=""))}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


@contextmanager
def needing_extra(extra: str) -> Iterator[None]:
    """Say which extra to install when an import fails. Raises StoreError."""
    try:
        yield
    except ImportError as error:
        raise StoreError(
            f"{extra}: a library is missing ({error}); pip install 'adherence-retrieval[{extra}]'"
        ) from error


def _origin(scheme: str, host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}{'' if port is None else f':{port}'}"


def _unreadable(store: str) -> StoreError:
    return StoreError(f"{store}: the address is not of the form http://host:port or https://host")
