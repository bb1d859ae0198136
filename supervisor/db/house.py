"""The service's own kind of connection: the driver's, for one user that knows what it sends.

    wait     left at once, without a word to the server, when whoever waits for its answer stops waiting; and
             without the driver's waking up ten times a second meanwhile
    fetch    a statement that is sent for every wake-up and every batch, prepared once, without a cursor's ceremony:
             `bench latency` shows what a start is made of

Always true: a connection whose answer was not waited for is closed. A statement that the server has forgotten, or
whose plan has become void, is prepared anew at the next call.

Elsewhere: who opens and replaces connections (link.py); statements (statements.py).
"""

import asyncio
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection, pq, waiting
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.rows import AsyncRowFactory, tuple_row

from supervisor.db.statements import statement

T = TypeVar("T")

_WAKES_S: Final = 3600.0
_PLACEHOLDER: Final = re.compile(rb"%\((\w+)\)s")
# The server does not know the statement; its plan cannot be made to fit any more.
_TO_PREPARE_ANEW: Final = frozenset({"26000", "0A000"})


def hang_up(conn: AsyncConnection | Connection) -> None:
    """End *conn* without asking the server: whoever waits for its answer is told at once that it is gone."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(conn.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


class Prepared(NamedTuple):
    """A statement with numbered parameters."""

    name: str
    text: bytes
    parameters: tuple[str, ...]
    """The name of each."""


@cache
def prepared(name: str, schema: str) -> Prepared:
    """The statement of sql/*name*.sql, to be sent by `HouseConnection.fetch`."""
    named = statement(name, schema)
    order = {found: number for number, found in enumerate(dict.fromkeys(_PLACEHOLDER.findall(named)), 1)}
    text = _PLACEHOLDER.sub(lambda found: b"$%d" % order[found[1]], named)
    return Prepared(f"{schema}.{name}", text, tuple(key.decode() for key in order))


class HouseConnection(AsyncConnection[tuple[Any, ...]]):
    """See above."""

    def __init__(self, pgconn: pq.abc.PGconn, row_factory: AsyncRowFactory[tuple[Any, ...]] = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self._names: dict[str, bytes] = {}
        self._made = 0
        self._transformer = Transformer(self)

    async def wait(self, gen: PQGen[T], interval: float = _WAKES_S, timeout: float | None = None) -> T:
        """As the driver's; but when cancelled it neither cancels the statement nor waits for that."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=_WAKES_S, timeout=timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            hang_up(self)
            self.pgconn.finish()
            raise

    async def fetch(self, statement: Prepared, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Run *statement* outside of a transaction and return its rows.

        Parameters go as their text, whose type the statement says or the server infers; None is null.

        Raises:
            psycopg.Error: as `execute` does.
        """
        values = [None if (value := parameters[name]) is None else str(value).encode() for name in statement.parameters]
        async with self.lock:
            try:
                if self.prepare_threshold is None:  # behind a pooler: the next transaction may meet another session
                    self.pgconn.send_query_params(statement.text, values, result_format=pq.Format.BINARY)
                else:
                    name = self._names.get(statement.name) or await self._prepare(statement)
                    self.pgconn.send_query_prepared(name, values, result_format=pq.Format.BINARY)
                result = await self._result()
            except psycopg.Error as error:
                if error.sqlstate in _TO_PREPARE_ANEW:
                    self._names.pop(statement.name, None)
                raise
        self._transformer.set_pgresult(result, format=pq.Format.BINARY)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def _prepare(self, statement: Prepared) -> bytes:
        self._made += 1
        name = b"%s %d" % (statement.name.encode(), self._made)
        self.pgconn.send_prepare(name, statement.text)
        await self._result()
        self._names[statement.name] = name
        return name

    async def _result(self) -> pq.abc.PGresult:
        results: list[pq.abc.PGresult] = await self.wait(execute(self.pgconn))
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        if not results:
            raise psycopg.InternalError("the server's answer has no result")
        return results[-1]
