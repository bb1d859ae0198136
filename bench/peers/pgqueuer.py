"""pgqueuer, on asyncpg."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.peers.shell import NOTE, Clock, Producer, main


class _Producer:
    def __init__(self, queries: Any) -> None:
        self._queries = queries

    async def one(self, n: int) -> None:
        await self._queries.enqueue("noop", json.dumps({"n": n, "note": NOTE}).encode())

    async def many(self, count: int) -> None:
        payloads = [json.dumps({"n": n, "note": NOTE}).encode() for n in range(count)]
        await self._queries.enqueue(["noop"] * count, payloads, [0] * count)


class Pgqueuer:
    """The library."""

    async def setup(self, url: str) -> None:
        conn = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(conn)).install()
        await conn.close()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        conn = await asyncpg.connect(url)
        try:
            yield _Producer(Queries(AsyncpgDriver(conn)))
        finally:
            await conn.close()

    async def work(self, url: str, concurrency: int, clock: Clock) -> None:
        conn = await asyncpg.connect(url)
        queuer = PgQueuer(AsyncpgDriver(conn))

        async def noop(job: Any) -> None:
            clock.seen(json.loads(job.payload)["n"])

        queuer.entrypoint("noop")(noop)
        if clock.latency:
            running = queuer.run(batch_size=10)
            await clock.go()
            await running
        else:
            await clock.go()
            await queuer.run(batch_size=concurrency)


if __name__ == "__main__":
    main(Pgqueuer())
