"""Fakes with behaviour for what the knowledge base talks to, and writers of its input files."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from kb.errors import StoreError
from kb.generations import Generations, LoadedGeneration
from kb.stores.factory import StoreConfig, open_generations
from kb.types import Fingerprint, Hit, Locale, Matrix, Source, SubChunk, Vector, VectorSpace

CARD = """\
---
id: {id}
title: {title}
category: {category}
locale: {locale}
drugs: [{drugs}]
sources:
  - name: A label
    url: https://example.org/label
    licence: CC0 1.0
reviewed: 2026-11-30
---
{body}
"""


def card_text(card_id: str = "c1", body: str = "Take with food.", **fields: str) -> str:
    """Write a valid card as text; ``fields`` replace what the front matter says."""
    values = {
        "title": f"About {card_id}",
        "category": "adherence-barrier",
        "locale": "en",
        "drugs": "",
    }
    return CARD.format(id=card_id, body=body, **(values | fields))


def write_card(
    folder: Path, card_id: str = "c1", body: str = "Take with food.", **fields: str
) -> Path:
    """Put a valid card into a folder and give its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{card_id}.md"
    path.write_text(card_text(card_id, body, **fields), "utf-8")
    return path


def sub_chunk(number: int, text: str | None = None, locale: Locale = "en") -> SubChunk:
    """Make a row of a card of its own."""
    return SubChunk(
        id=f"card-{number}:{locale}:1",
        card_id=f"card-{number}",
        locale=locale,
        ordinal=1,
        title=f"Title {number}",
        category="escalation",
        section="Section",
        text=f"text {number}" if text is None else text,
        drugs=("warfarin",),
        sources=(Source("Label", "https://example.org", "CC0 1.0", ("Section",)),),
    )


def text_vector(text: str, dimension: int) -> Vector:
    """Give a text its own direction: equal for equal texts only."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    vector = np.random.default_rng(seed).normal(size=dimension)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


class HashEmbedder:
    """Embed a text by its hash. ``fail_on_call`` (from 1) makes that call raise ``error``."""

    def __init__(
        self,
        dimension: int = 8,
        name: str = "hash",
        fail_on_call: int = 0,
        error: BaseException | None = None,
        languages: Iterable[str] = (),
    ) -> None:
        self.fingerprint = Fingerprint(name, "r1", dimension, "", "")
        self.languages = frozenset(languages)
        self.passages: list[str] = []
        self._calls = 0
        self._fail_on_call = fail_on_call
        self._error = error

    def embed_query(self, text: str) -> Vector:
        return text_vector(text, self.fingerprint.dimension)

    def embed_passages(self, texts: Sequence[str]) -> Matrix:
        self._calls += 1
        if self._error is not None and self._calls == self._fail_on_call:
            raise self._error
        self.passages.extend(texts)
        rows = [text_vector(text, self.fingerprint.dimension) for text in texts]
        return np.stack(rows) if rows else np.empty((0, self.fingerprint.dimension), np.float32)


def generations_in(home: Path) -> Generations:
    """Open the embedded knowledge base of a folder, as another process would."""
    return open_generations(StoreConfig(home))


def served_id(home: Path) -> str:
    """Name the published generation; there is one."""
    generation_id = generations_in(home).current_id()
    assert generation_id is not None
    return generation_id


def read_whole(
    home: Path, generation_id: str | None = None
) -> tuple[LoadedGeneration, dict[str, dict[str, Vector]]]:
    """Read a generation (the published one, unless named) and the vectors of each space by id."""
    generations = generations_in(home)
    loaded = generations.load(generation_id or served_id(home))
    reader = generations.open_vectors(loaded.manifest)
    try:
        spaces = {}
        for space in loaded.manifest.spaces:
            ids = [chunk.id for chunk in loaded.chunks if space.covers(chunk.locale)]
            assert reader.count(space.name) == len(ids)
            spaces[space.name] = dict(zip(ids, reader.vectors(space.name, ids), strict=True))
    finally:
        reader.close()
    return loaded, spaces


class MemoryDocuments:
    """Documents in a dictionary."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.held.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.held[name] = data

    def delete(self, name: str) -> None:
        self.held.pop(name, None)

    def names(self) -> list[str]:
        return sorted(self.held)


class MemoryVectors:
    """The vectors of one generation in dictionaries, written and read; every search is exact.

    ``lost`` ids are there but no search reaches them.
    """

    def __init__(self, spaces: dict[str, dict[str, Vector]], copied: Iterable[str] = ()) -> None:
        self.spaces = spaces
        self.copied = frozenset(copied)
        self.lost = set[str]()

    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None:
        self.spaces[space].update(zip(chunk_ids, vectors, strict=True))

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None:
        for chunk_id in chunk_ids:
            del self.spaces[space][chunk_id]

    def finish(self) -> dict[str, str]:
        return {name: self._seal(name) for name in self.spaces}

    def _seal(self, space: str) -> str:
        rows = sorted(self.spaces[space].items())
        return hashlib.sha256(b"".join(i.encode() + v.tobytes() for i, v in rows)).hexdigest()

    def count(self, space: str) -> int:
        return len(self.spaces[space])

    def vectors(self, space: str, chunk_ids: Sequence[str]) -> Matrix:
        try:
            rows = [self.spaces[space][chunk_id] for chunk_id in chunk_ids]
        except KeyError as error:
            raise StoreError(f"{space} holds no {error}") from None
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
        hits = [
            Hit(chunk_id, float(row @ vector))
            for chunk_id, row in self.spaces[space].items()
            if chunk_id not in self.lost
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))[:depth]

    def close(self) -> None:
        """Nothing is held."""


class MemoryStore:
    """Generations in memory. ``copies`` tells whether a new one begins as a copy of its base."""

    def __init__(self, *, copies: bool) -> None:
        self.held: dict[str, MemoryVectors] = {}
        self._copies = copies

    def create(
        self, generation: str, spaces: Sequence[VectorSpace], base: str | None
    ) -> MemoryVectors:
        if generation in self.held:
            raise StoreError(f"{generation}: is there already")
        before = self.held[base].spaces if base and self._copies else {}
        copied = before.keys() & {space.name for space in spaces}
        rows = {space.name: dict(before.get(space.name, {})) for space in spaces}
        self.held[generation] = MemoryVectors(rows, copied)
        return self.held[generation]

    def open(
        self,
        generation: str,
        spaces: Sequence[VectorSpace],
        seals: Mapping[str, str],
        *,
        thorough: bool = False,
    ) -> MemoryVectors:
        del thorough
        held = self.held.get(generation)
        if held is None or held.finish() != dict(seals):
            raise StoreError(f"{generation}: is not what was sealed")
        assert {space.name for space in spaces} == held.spaces.keys()
        return held

    def drop(self, generation: str) -> None:
        self.held.pop(generation, None)

    def generations(self) -> list[str]:
        return sorted(self.held)

    def announce(self, generation: str, spaces: Sequence[VectorSpace]) -> None:
        """There are no other names."""


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: pytest captures the answers, not the log."""


@dataclass
class FileServer:
    """Serve one file with ranges. Each connection may be cut after so many bytes of its body."""

    content: bytes
    honours_range: bool = True
    cuts: list[int] = field(default_factory=list)
    cut_always: int | None = None
    ranges: list[str | None] = field(default_factory=list)
    """The Range header of each request for the file, in order."""
    sent: int = 0
    """Bytes of the file sent so far, over all requests."""

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve until the block ends; give the base URL. ``/moved`` redirects to ``/file``."""
        state = self

        class Handler(_Quiet):
            def do_GET(self) -> None:
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", "/file")
                    self.end_headers()
                elif self.path == "/file":
                    state._answer(self)
                else:
                    self.send_error(404)

        with _serving(Handler) as url:
            yield url

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers["Range"]
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if not self.honours_range:
            start = 0
        elif asked and start >= len(self.content):
            request.send_response(416)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        body = self.content[start:]
        request.send_response(206 if asked and self.honours_range else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        cut = self.cuts.pop(0) if self.cuts else self.cut_always
        body = body if cut is None else body[:cut]
        request.wfile.write(body)
        self.sent += len(body)


Reply = tuple[int, bytes]
Behaviour = Callable[[dict[str, Any]], Reply | None]
"""Given a request, its answer; None for one that comes a byte at a time and never ends."""

VOYAGE_DIMENSION = 1024


def voyage_reply(rows: Sequence[object]) -> Reply:
    """Write an answer of the embeddings API."""
    data = [
        {"object": "embedding", "embedding": row, "index": index} for index, row in enumerate(rows)
    ]
    body = {"object": "list", "data": data, "model": "voyage-3.5", "usage": {"total_tokens": 1}}
    return 200, json.dumps(body).encode()


def voyage_error(status: int, detail: str) -> Behaviour:
    """Behave as the API does when it refuses."""
    return lambda _: (status, json.dumps({"detail": detail}).encode())


def _voyage_embeds(body: dict[str, Any]) -> Reply:
    # As the API does: base64 of float32, when the client asks for it. Not of unit length.
    rows = [3 * text_vector(text, VOYAGE_DIMENSION) for text in body["input"]]
    assert body["encoding_format"] == "base64"
    return voyage_reply([base64.b64encode(row.tobytes()).decode() for row in rows])


class FakeVoyage:
    """The embeddings API on loopback. ``script`` says what the first calls get; then it embeds."""

    def __init__(self, script: Sequence[Behaviour] = ()) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self._released = threading.Event()
        self._stopped = threading.Event()
        self._arrived = threading.Semaphore(0)

    def hang(self, body: dict[str, Any]) -> Reply:
        """Give no answer before `release`, or while the server runs."""
        self._released.wait()
        return _voyage_embeds(body)

    def release(self) -> None:
        """Let what hangs be answered."""
        self._released.set()

    def trickle(self, _: dict[str, Any]) -> None:
        """Be answered a byte at a time, without end."""

    def wait_for_requests(self, count: int) -> bool:
        """Wait until so many more requests have arrived; False when they do not."""
        return all(self._arrived.acquire(timeout=30) for _ in range(count))

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve until the block ends; give the base URL for the client."""
        state = self

        class Handler(_Quiet):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                behaviour = state.script.pop(0) if state.script else _voyage_embeds
                state.paths.append(self.path)
                state.keys.append(self.headers["Authorization"])
                state.requests.append(body)
                state._arrived.release()
                reply = behaviour(body)
                if state._stopped.is_set():
                    return  # The caller gave up long ago.
                if reply is None:
                    state._trickle(self)
                    return
                status, answer = reply
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        with _serving(Handler) as url:
            try:
                yield f"{url}/v1"
            finally:
                self._stopped.set()
                self._released.set()

    def _trickle(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        while not self._stopped.wait(0.05):
            try:
                request.wfile.write(b" ")
            except OSError:
                return  # The caller gave up.


TINY_WORDS = ("represent", "this", "sentence", "warfarin", "ibuprofen", "dose", "of", "the")


def write_tiny_onnx_embedder(folder: Path, dimension: int, seed: int = 7) -> None:
    """Write a real ONNX model and tokenizer: each position gives the mean of the word vectors.

    The files are those of the in-the-box embedder, so that the model store takes it for present.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Whitespace

    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *TINY_WORDS]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(words[:4])
    # As in the real files: every text padded to a fixed length, which the adapter must undo.
    tokenizer.enable_padding(length=512)
    tokenizer.enable_truncation(512)
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(seed).normal(size=(len(words), dimension)).astype(np.float32)
    (folder / "model.onnx").write_bytes(_mean_of_rows_model(table))
    (folder / "config.json").write_text("{}", "utf-8")
    (folder / "tokenizer_config.json").write_text("{}", "utf-8")


def _mean_of_rows_model(table: Matrix) -> bytes:
    """Encode ``ReduceMean(Gather(table, input_ids))``, written by hand to need no onnx package."""
    attributes = [
        _text(1, "axes") + _number(8, 1) + _number(20, 7),
        _text(1, "keepdims") + _number(3, 1) + _number(20, 2),
    ]
    gather = _text(1, "table") + _text(1, "input_ids") + _text(2, "rows") + _text(4, "Gather")
    mean = _text(1, "rows") + _text(2, "last_hidden_state") + _text(4, "ReduceMean")
    mean += b"".join(_bytes(5, attribute) for attribute in attributes)
    dims = b"".join(_number(1, size) for size in table.shape)
    weights = dims + _number(2, 1) + _text(8, "table") + _bytes(9, table.tobytes())
    graph = (
        _bytes(1, gather)
        + _bytes(1, mean)
        + _text(2, "mean of rows")
        + _bytes(5, weights)
        + _bytes(11, _tensor("input_ids", 7, ["batch", "tokens"]))
        + _bytes(12, _tensor("last_hidden_state", 1, ["batch", "one", "dimension"]))
    )
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _number(2, 13))


def _tensor(name: str, element_type: int, axes: Sequence[str]) -> bytes:
    shape = b"".join(_bytes(1, _text(2, axis)) for axis in axes)
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, element_type) + _bytes(2, shape)))


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += struct.pack("B", value & 0x7F | 0x80)
        value >>= 7
    return out + struct.pack("B", value)


def _number(tag: int, value: int) -> bytes:
    return _varint(tag << 3) + _varint(value)


def _bytes(tag: int, value: bytes) -> bytes:
    return _varint(tag << 3 | 2) + _varint(len(value)) + value


def _text(tag: int, value: str) -> bytes:
    return _bytes(tag, value.encode())
