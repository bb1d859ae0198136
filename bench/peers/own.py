"""The service's own producer, by psycopg; its workers are `supervisor run`.

BENCH_KIND=bench.mark adds jobs whose handlers tell when they start.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from bench.jobs import mark, noop
from bench.peers.shell import NOTE, Clock, Producer, main
from supervisor.db.migrate import migrate


class _Producer:
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._handler = mark if os.environ.get("BENCH_KIND") == mark.kind else noop

    async def one(self, n: int) -> None:
        self._handler.enqueue(self._conn, n=n, note=NOTE)

    async def many(self, count: int) -> None:
        with self._conn.transaction():
            self._handler.enqueue_many(self._conn, [{"n": n, "note": NOTE} for n in range(count)])


class Own:
    """The service."""

    async def setup(self, url: str) -> None:
        migrate(url)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        with psycopg.connect(url, autocommit=True) as conn:
            yield _Producer(conn)

    async def work(self, url: str, concurrency: int, clock: Clock) -> None:
        raise SystemExit("the service's workers are run by bench/service.py")


if __name__ == "__main__":
    main(Own())
