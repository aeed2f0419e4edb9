"""PostgreSQL with pgvector: a table a vector space, and three tables of what there is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar
from weakref import finalize

import numpy as np

from kb.errors import StoreError
from kb.stores.digest import SealingWriter, check_seal, digest_vectors, nearest
from kb.stores.place import Place, needing_extra, spellings
from kb.stores.records import (
    SpaceRecord,
    check_same,
    describe_spaces,
    engine_name,
    find_space,
)
from kb.types import EXACT_ROWS, Hit, Matrix, Vector, VectorSpace

if TYPE_CHECKING:
    from psycopg import Connection, Cursor
    from psycopg.sql import Composed

_STORE: Final = "PostgreSQL"
_TYPE: Final = "vector"
_CONNECTIONS: Final = 8
_STATEMENT_S: Final = 30
_BUILD_S: Final = 1800
_PAGE: Final = 1000
_SEARCH_WIDTH: Final = 200
_WIDEST_SEARCH: Final = 1000  # pgvector's limit of hnsw.ef_search: an index gives no more hits.
_INDEXED_DIMENSIONS: Final = 2000  # pgvector indexes no longer vectors.
_NETWORK: Final[Mapping[str, str | int]] = {
    "application_name": "adherence-retrieval",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 1000 * _STATEMENT_S,
}
# Two writers that begin at once would both find nothing there, and one would fail.
_ONE_AT_A_TIME: Final = "select pg_advisory_xact_lock(hashtext('adherence-retrieval'))"
_SCHEMA: Final[tuple[LiteralString, ...]] = (
    """create table if not exists kb_documents (
        namespace text, name text collate "C", data bytea not null,
        primary key (namespace, name))""",
    """create table if not exists kb_generations (
        namespace text, generation text collate "C", primary key (namespace, generation))""",
    """create table if not exists kb_spaces (
        namespace text, generation text collate "C", space text,
        relation text not null, fingerprint text not null,
        dimension integer not null, metric text not null,
        primary key (namespace, generation, space),
        foreign key (namespace, generation) references kb_generations)""",
)
_T = TypeVar("_T")


def open_pgvector(url: str, namespace: str) -> tuple[PgvectorDocuments, PgvectorStore]:
    """Open a PostgreSQL; it is first called when something is read or written.

    Args:
        url: as ``postgresql://user:password@host/database``, or libpq's other form.
        namespace: keeps knowledge bases in one database apart.

    Raises:
        StoreError: a library is missing, or the address cannot be read.
    """
    with needing_extra("pgvector"):
        import pgvector.psycopg
        import psycopg.conninfo

        del pgvector
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        # Its message may show the address, with the password.
        raise StoreError(
            f"{_STORE}: the address is not of the form postgresql://user@host/database"
        ) from None
    secrets = (str(given[name]) for name in ("password", "sslpassword") if given.get(name))
    address = (
        f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"
    )
    place = Place(_STORE, address, spellings(*secrets))
    pool = _Pool({**_NETWORK, **given}, place)
    return PgvectorDocuments(pool, namespace), PgvectorStore(pool, namespace)


class PgvectorDocuments:
    """Keep each document in one row: a statement writes it whole or not at all."""

    def __init__(self, pool: _Pool, namespace: str) -> None:
        self._pool = pool
        self._namespace = namespace

    def get(self, name: str) -> bytes | None:
        """Read a document; None when there is none. Raises StoreError."""
        rows = self._pool.rows(
            f"reading {name}",
            "select data from kb_documents where namespace = %s and name = %s",
            (self._namespace, name),
        )
        return bytes(rows[0][0]) if rows else None

    def put(self, name: str, data: bytes) -> None:
        """Write a document whole or not at all. Raises StoreError."""
        self._pool.prepare()
        self._pool.run(
            f"writing {name}",
            lambda connection: connection.execute(
                "insert into kb_documents values (%s, %s, %b) "
                "on conflict (namespace, name) do update set data = excluded.data",
                (self._namespace, name, data),
            ),
        )

    def delete(self, name: str) -> None:
        """Delete a document, if it is there. Raises StoreError."""
        self._pool.rows(
            f"deleting {name}",
            "delete from kb_documents where namespace = %s and name = %s returning name",
            (self._namespace, name),
        )

    def names(self) -> list[str]:
        """Name every document, in ascending order. Raises StoreError."""
        query: LiteralString = "select name from kb_documents where namespace = %s order by name"
        return [name for (name,) in self._pool.rows("listing documents", query, (self._namespace,))]


class PgvectorStore:
    """Hold every generation in tables of one database.

    Args:
        pool: connections to it.
        namespace: keeps knowledge bases in one database apart.
        exact_rows: larger tables get an index.
    """

    def __init__(self, pool: _Pool, namespace: str, exact_rows: int = EXACT_ROWS) -> None:
        self._pool = pool
        self._namespace = namespace
        self._exact_rows = exact_rows

    def create(
        self, generation: str, spaces: Sequence[VectorSpace], base: str | None
    ) -> SealingWriter:
        """Begin a generation, from a copy of ``base`` inside the server. Raises StoreError."""
        self._pool.prepare()
        wanted = describe_spaces({s.name: self._relation(generation, s) for s in spaces}, spaces)
        before = (self._read(base) if base else None) or {}
        sources = {
            name: before[name].relation
            for name, record in wanted.items()
            if name in before and _alike(before[name], record)
        }

        def make(connection: Connection) -> None:
            with connection.transaction():
                _allow(connection, _BUILD_S)
                self._write_down(connection, generation, wanted)
                for name, record in wanted.items():
                    _make_table(connection, record, sources.get(name))

        self._pool.run(f"making {generation}", make)
        vectors = _PgvectorVectors(self._pool, wanted, spaces, self._exact_rows)

        def finish_space(space: str) -> str:
            vectors.index(space)
            return vectors.digest(space)

        return SealingWriter(vectors, finish_space, wanted, frozenset(sources))

    def open(
        self,
        generation: str,
        spaces: Sequence[VectorSpace],
        seals: Mapping[str, str],
        *,
        thorough: bool = False,
    ) -> _PgvectorVectors:
        """Open a finished generation. Raises StoreError when it is not what was sealed."""
        where = str(self._pool.place)
        found = self._read(generation)
        if found is None:
            raise StoreError(
                f"{where}: there is no generation {generation}; run `retrieval ingest`"
            )
        records = {s.name: find_space(where, generation, s, found) for s in spaces}
        vectors = _PgvectorVectors(self._pool, records, spaces, self._exact_rows)
        for space in spaces:
            dimension = vectors.dimension(space.name)
            check_same(where, space, "dimension", dimension, space.fingerprint.dimension)
            check_same(where, space, "number of rows", vectors.count(space.name), space.rows)
            digest = partial(vectors.digest, space.name)
            check_seal(where, space, seals, digest, thorough=thorough)
        return vectors

    def drop(self, generation: str) -> None:
        """Delete a generation, whatever there is of it. Raises StoreError."""
        found = self._read(generation)
        if found is None:
            return

        def delete(connection: Connection) -> None:
            with connection.transaction():
                for record in found.values():
                    connection.execute(_sql("drop table if exists {}", record.relation))
                key = (self._namespace, generation)
                for table in ("kb_spaces", "kb_generations"):
                    connection.execute(
                        _sql("delete from {} where namespace = %s and generation = %s", table), key
                    )

        self._pool.run(f"deleting {generation}", delete)

    def generations(self) -> list[str]:
        """Name every generation of which there is anything, in ascending order."""
        rows = self._pool.rows(
            "listing generations",
            "select generation from kb_generations where namespace = %s order by generation",
            (self._namespace,),
        )
        return [generation for (generation,) in rows]

    def announce(self, generation: str, spaces: Sequence[VectorSpace]) -> None:
        """Do nothing: a table has no other names."""

    def close(self) -> None:
        """Let go of the connections; the documents' too."""
        self._pool.close()

    def _relation(self, generation: str, space: VectorSpace) -> str:
        return engine_name("kb", self._namespace, generation, space.name, separator="_")

    def _read(self, generation: str) -> dict[str, SpaceRecord] | None:
        rows = self._pool.rows(
            f"looking for {generation}",
            "select space, relation, fingerprint, dimension, metric from kb_generations "
            "left join kb_spaces using (namespace, generation) "
            "where namespace = %s and generation = %s",
            (self._namespace, generation),
        )
        found = {row[0]: SpaceRecord(*row[1:]) for row in rows if row[0] is not None}
        return found if rows else None

    def _write_down(
        self, connection: Connection, generation: str, spaces: Mapping[str, SpaceRecord]
    ) -> None:
        from psycopg.errors import UniqueViolation

        key = (self._namespace, generation)
        try:
            connection.execute("insert into kb_generations values (%s, %s)", key)
        except UniqueViolation:
            raise StoreError(f"{self._pool.place}: generation {generation} exists") from None
        for name, space in spaces.items():
            facts = (space.relation, space.fingerprint, space.dimension, space.metric)
            connection.execute(
                "insert into kb_spaces values (%s, %s, %s, %s, %s, %s, %s)", (*key, name, *facts)
            )


class _PgvectorVectors:
    """Read and write the tables of one generation."""

    def __init__(
        self,
        pool: _Pool,
        records: Mapping[str, SpaceRecord],
        spaces: Sequence[VectorSpace],
        exact_rows: int,
    ) -> None:
        self.spaces = {space.name: space for space in spaces}
        self._pool = pool
        self._records = records
        self._exact_rows = exact_rows

    def upsert(self, space: str, chunk_ids: Sequence[str], vectors: Matrix) -> None:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)

        def write(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(
                    "create temporary table kb_incoming (id text, embedding vector) on commit drop"
                )
                with cursor.copy("copy kb_incoming from stdin with (format binary)") as copy:
                    copy.set_types(["text", _TYPE])
                    for row in zip(chunk_ids, rows, strict=True):
                        copy.write_row(row)
                cursor.execute(
                    self._sql(
                        "insert into {} select id, embedding from kb_incoming "
                        "on conflict (id) do update set embedding = excluded.embedding",
                        space,
                    )
                )

        self._pool.run(f"writing to {space}", write)

    def delete(self, space: str, chunk_ids: Sequence[str]) -> None:
        query = self._sql("delete from {} where id = any(%s)", space)
        self._pool.run(f"deleting from {space}", lambda c: c.execute(query, (list(chunk_ids),)))

    def index(self, space: str) -> None:
        """Index a table that is too large to search row by row."""
        if not self._indexed(space, self.count(space)):
            return
        make = self._sql(
            "create index on {} using hnsw (embedding vector_cosine_ops) "
            "with (m = 16, ef_construction = 200)",
            space,
        )

        def build(connection: Connection) -> None:
            with connection.transaction():
                _allow(connection, _BUILD_S)
                connection.execute(make)
                connection.execute(self._sql("analyze {}", space))

        self._pool.run(f"indexing {space}", build)

    def digest(self, space: str) -> str:
        """Hash a space's rows as they are read back."""
        return digest_vectors(self._pages(space))

    def dimension(self, space: str) -> int:
        """Give the dimension that a table was made for."""
        query: LiteralString = (
            "select atttypmod from pg_attribute "
            "where attrelid = to_regclass(%s) and attname = 'embedding'"
        )
        relation = f'"{self._records[space].relation}"'
        rows = self._pool.rows(f"describing {space}", query, (relation,))
        if not rows:
            raise StoreError(
                f"{self._pool.place}: the table of {space} is gone; run `retrieval ingest`"
            )
        return int(rows[0][0])

    def count(self, space: str) -> int:
        """Count a space's rows. Raises StoreError."""
        query = self._sql("select count(*) from {}", space)
        return int(self._fetch(f"counting {space}", query)[0][0])

    def vectors(self, space: str, chunk_ids: Sequence[str]) -> Matrix:
        """Read vectors, in the given order. Raises StoreError when one is not there."""
        query = self._sql("select id, embedding from {} where id = any(%s)", space)
        found: dict[str, Vector] = {}
        for start in range(0, len(chunk_ids), _PAGE):
            page = list(chunk_ids[start : start + _PAGE])
            found.update(self._read(space, query, (page,)))
        if missing := [chunk_id for chunk_id in chunk_ids if chunk_id not in found]:
            raise StoreError(
                f"{self._pool.place}: {space} holds no {missing[0]}; run `retrieval ingest`"
            )
        return self._matrix(space, [found[chunk_id] for chunk_id in chunk_ids])

    def search(self, space: str, vector: Vector, depth: int) -> list[Hit]:
        """Find the nearest rows by cosine similarity, best first."""
        if self._indexed(space, self.spaces[space].rows):
            return nearest(lambda limit: self._search_index(space, vector, limit), depth)
        query = self._sql(
            "select id, 1 - (embedding <=> %(vector)s) from {} "
            "order by embedding <=> %(vector)s, id limit %(limit)s",
            space,
        )
        return self._hits(space, lambda c: c.execute(query, _values(vector, depth), binary=True))

    def close(self) -> None:
        """Let go of the connections; the store makes new ones when it is asked again."""
        self._pool.close()

    def _indexed(self, space: str, rows: int) -> bool:
        dimension = self.spaces[space].fingerprint.dimension
        return rows > self._exact_rows and dimension <= _INDEXED_DIMENSIONS

    def _search_index(self, space: str, vector: Vector, limit: int) -> list[Hit]:
        # Before PostgreSQL 17 no index serves a query that also sorts by id.
        query = self._sql(
            "select id, 1 - (embedding <=> %(vector)s) from {} "
            "order by embedding <=> %(vector)s limit %(limit)s",
            space,
        )

        def find(connection: Connection) -> Cursor:
            with connection.transaction():
                _widen(connection, limit)
                return connection.execute(query, _values(vector, limit), binary=True)

        return self._hits(space, find)

    def _hits(self, space: str, find: Callable[[Connection], Cursor]) -> list[Hit]:
        rows = self._pool.run(f"searching {space}", lambda c: find(c).fetchall())
        hits = [Hit(chunk_id, float(score)) for chunk_id, score in rows]
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))

    def _pages(self, space: str) -> Iterator[tuple[list[str], Matrix]]:
        query = self._sql("select id, embedding from {} where id > %s order by id limit %s", space)
        last = ""
        while rows := self._read(space, query, (last, _PAGE)):
            last = rows[-1][0]
            yield [chunk_id for chunk_id, _ in rows], self._matrix(space, [v for _, v in rows])

    def _read(
        self, space: str, query: Composed, values: Sequence[object]
    ) -> list[tuple[str, Vector]]:
        rows = self._fetch(f"reading {space}", query, values)
        return [(chunk_id, embedding.to_numpy()) for chunk_id, embedding in rows]

    def _fetch(
        self, doing: str, query: Composed, values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        return self._pool.run(doing, lambda c: c.execute(query, values, binary=True).fetchall())

    def _matrix(self, space: str, rows: Sequence[Vector]) -> Matrix:
        dimension = self.spaces[space].fingerprint.dimension
        return np.asarray(rows, dtype=np.float32).reshape(len(rows), dimension)

    def _sql(self, query: LiteralString, space: str) -> Composed:
        return _sql(query, self._records[space].relation)


class _Pool:
    """Lend connections, each to one thread at a time, and make new ones for the broken."""

    def __init__(self, parameters: Mapping[str, Any], place: Place) -> None:
        self.place = place
        self._parameters = parameters
        self._idle: list[Connection] = []
        self._turns = threading.BoundedSemaphore(_CONNECTIONS)
        self._prepared = False
        finalize(self, _close_all, self._idle)

    def run(self, doing: str, work: Callable[[Connection], _T]) -> _T:
        """Do work on a connection; once more when that one had been cut while it lay idle.

        The work must do no harm when it is done twice. Raises StoreError.
        """
        from psycopg import OperationalError

        if not self._turns.acquire(timeout=_STATEMENT_S):
            raise StoreError(f"{self.place}: {doing} failed: every connection is in use")
        try:
            with self.place.telling_errors(doing):
                if (idle := self._take()) is not None:
                    try:
                        return self._use(idle, work)
                    except OperationalError:
                        if not idle.closed:
                            raise
                        self.close()  # The others were cut with it.
                return self._use(self._connect(), work)
        finally:
            self._turns.release()

    def rows(
        self, doing: str, query: LiteralString, values: Sequence[object]
    ) -> list[tuple[Any, ...]]:
        """Read rows; none when nothing was ever written to the database. Raises StoreError."""
        from psycopg.errors import UndefinedTable

        def read(connection: Connection) -> list[tuple[Any, ...]]:
            try:
                return connection.execute(query, values).fetchall()
            except UndefinedTable:
                return []

        return self.run(doing, read)

    def prepare(self) -> None:
        """Make the extension and the tables, where they are not there yet. Raises StoreError."""
        if self._prepared:
            return
        self.run("preparing the database", self._make_schema)
        self._prepared = True

    def close(self) -> None:
        """Close the connections that nobody uses."""
        _close_all(self._idle)

    def _make_schema(self, connection: Connection) -> None:
        from psycopg import errors

        refused = (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFile)
        with connection.transaction():
            connection.execute(_ONE_AT_A_TIME)
            try:
                connection.execute("create extension if not exists vector")
            except refused as error:
                raise StoreError(
                    f"{self.place}: the extension pgvector is not there and cannot be made "
                    f"({str(error).splitlines()[0]}); let an administrator install it and run "
                    "`create extension vector`"
                ) from error
            for statement in _SCHEMA:
                connection.execute(statement)

    def _take(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _use(self, connection: Connection, work: Callable[[Connection], _T]) -> _T:
        try:
            return work(connection)
        finally:
            if _is_reusable(connection):
                self._idle.append(connection)
            else:
                connection.close()

    def _connect(self) -> Connection:
        import psycopg
        from pgvector.psycopg import register_vector
        from psycopg.types import TypeInfo

        # Poolers between us and the server do not keep prepared statements.
        connection = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=None)
        try:
            limit = f"{_STATEMENT_S}s"
            connection.execute("select set_config('statement_timeout', %s, false)", (limit,))
            if TypeInfo.fetch(connection, _TYPE) is not None:
                register_vector(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _sql(query: LiteralString, relation: str) -> Composed:
    from psycopg import sql

    return sql.SQL(query).format(sql.Identifier(relation))


def _make_table(connection: Connection, record: SpaceRecord, source: str | None) -> None:
    from psycopg import sql

    table = sql.Identifier(record.relation)
    connection.execute(
        sql.SQL(
            'create table {} (id text collate "C" primary key, embedding vector({}) not null)'
        ).format(table, sql.Literal(record.dimension))
    )
    if source is not None:
        copy = sql.SQL("insert into {} select id, embedding from {}")
        connection.execute(copy.format(table, sql.Identifier(source)))


def _alike(one: SpaceRecord, other: SpaceRecord) -> bool:
    return (one.fingerprint, one.dimension, one.metric) == (
        other.fingerprint,
        other.dimension,
        other.metric,
    )


def _allow(connection: Connection, seconds: int) -> None:
    """Let the statements of this transaction run longer."""
    connection.execute("select set_config('statement_timeout', %s, true)", (f"{seconds}s",))


def _values(vector: Vector, limit: int) -> dict[str, object]:
    return {"vector": np.asarray(vector, dtype=np.float32), "limit": limit}


def _widen(connection: Connection, limit: int) -> None:
    """Let an index give so many hits in this transaction, or pass it over."""
    width = str(min(max(limit, _SEARCH_WIDTH), _WIDEST_SEARCH))
    connection.execute("select set_config('hnsw.ef_search', %s, true)", (width,))
    if limit > _WIDEST_SEARCH:
        connection.execute("select set_config('enable_indexscan', 'off', true)")


def _is_reusable(connection: Connection) -> bool:
    """Tell whether a connection is whole, and was made when the extension was there already."""
    from psycopg.pq import TransactionStatus

    return (
        connection.info.transaction_status == TransactionStatus.IDLE
        and connection.adapters.types.get(_TYPE) is not None
    )


def _close_all(connections: list[Connection]) -> None:
    while connections:
        try:
            connection = connections.pop()
        except IndexError:  # Another thread was faster.
            return
        connection.close()
