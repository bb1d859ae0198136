"""Bare loops by asyncpg: what a queue costs without handlers, fencing, retries or history.

`drain`: claim up to 50 rows of the plain table, delete them, and again: two commits. `latency`: LISTEN, and at a
notification one claim.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from bench.peers.shell import NOTE, Clock, Producer, main
from bench.pgbench import BATCH, CLAIM, TABLE

_CLAIM = CLAIM.format(batch=BATCH, client="0") + " select id, kind, payload from claimed"
_DELETE = "delete from plain_job where id = any($1::bigint[])"
_INSERT = "insert into plain_job (kind, payload) values ($1, $2)"


class _Producer:
    def __init__(self, conn: asyncpg.Connection) -> None:
        self._conn = conn

    async def one(self, n: int) -> None:
        await self._conn.execute(
            f"with added as ({_INSERT} returning id) select pg_notify('plain_job', '') from added",
            "bench.noop", json.dumps({"n": n, "note": NOTE}),
        )  # fmt: skip

    async def many(self, count: int) -> None:
        await self._conn.copy_records_to_table(
            "plain_job",
            columns=["kind", "payload"],
            records=[("bench.noop", json.dumps({"n": n, "note": NOTE})) for n in range(count)],
        )


class Bare:
    """The loops."""

    async def setup(self, url: str) -> None:
        conn = await asyncpg.connect(url)
        await conn.execute(TABLE)
        await conn.close()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        conn = await asyncpg.connect(url)
        try:
            yield _Producer(conn)
        finally:
            await conn.close()

    async def work(self, url: str, concurrency: int, clock: Clock) -> None:
        conn = await asyncpg.connect(url)
        claim, delete = await conn.prepare(_CLAIM), await conn.prepare(_DELETE)
        await delete.fetch([])
        called = asyncio.Event()
        if clock.latency:
            ear = await asyncpg.connect(url)
            await ear.add_listener("plain_job", lambda *_: called.set())
        await clock.go()
        clock.begin()
        while True:
            rows = await claim.fetch()
            if rows:
                if clock.latency:
                    for row in rows:
                        clock.seen(json.loads(row["payload"])["n"])
                await delete.fetch([row["id"] for row in rows])
                if not clock.latency:
                    clock.seen_all(len(rows))
            elif clock.latency:
                await called.wait()
                called.clear()
            else:
                await asyncio.sleep(0.01)


if __name__ == "__main__":
    main(Bare())
