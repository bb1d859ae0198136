"""Inserts into a table with the columns and indexes of the service's, without a trigger, by the service's driver."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from bench.peers.shell import NOTE, Clock, Producer, main
from supervisor.db.migrate import migrate


class _Producer:
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn

    async def one(self, n: int) -> None:
        self._conn.execute(
            "insert into plain_job (kind, queue, payload) values (%s, %s, %s)",
            ("bench.noop", "default", json.dumps({"n": n, "note": NOTE})),
        )

    async def many(self, count: int) -> None:
        with (
            self._conn.transaction(),
            self._conn.cursor() as cursor,
            cursor.copy("copy plain_job (kind, queue, payload) from stdin") as copy,
        ):
            for n in range(count):
                copy.write_row(("bench.noop", "default", json.dumps({"n": n, "note": NOTE})))


class Plain:
    """The table."""

    async def setup(self, url: str) -> None:
        migrate(url)
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("create table plain_job (like supervisor.job including all)")

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        with psycopg.connect(url, autocommit=True) as conn:
            yield _Producer(conn)

    async def work(self, url: str, concurrency: int, clock: Clock) -> None:
        raise SystemExit("nobody works on the plain table: it shows what inserting costs")


if __name__ == "__main__":
    main(Plain())
