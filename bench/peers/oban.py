"""oban for Python, on psycopg. It needs Python 3.12: with an older one it is left out, and told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from oban import Oban, worker
from oban.schema import install

from bench.peers.shell import NOTE, Clock, Producer, main

_clock: Clock | None = None


class _Noop:
    async def process(self, job: Any) -> None:
        if _clock is not None:
            _clock.seen(job.args["n"])


_noop: Any = worker(queue="default")(_Noop)


class _Producer:
    def __init__(self, oban: Any) -> None:
        self._oban = oban

    async def one(self, n: int) -> None:
        await self._oban.enqueue(_noop.new({"n": n, "note": NOTE}))

    async def many(self, count: int) -> None:
        await self._oban.enqueue_many([_noop.new({"n": n, "note": NOTE}) for n in range(count)])


class ObanPeer:
    """The library."""

    async def setup(self, url: str) -> None:
        pool = await Oban.create_pool(url)
        await install(pool)
        await pool.close()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        pool = await Oban.create_pool(url, min_size=1, max_size=1)
        try:
            yield _Producer(Oban(pool=pool, leadership=False))
        finally:
            await pool.close()

    async def work(self, url: str, concurrency: int, clock: Clock) -> None:
        global _clock
        _clock = clock
        pool = await Oban.create_pool(url)
        oban = Oban(pool=pool, queues={"default": concurrency})
        if clock.latency:
            async with oban:
                await clock.go()
                await _forever()
        else:
            await clock.go()
            async with oban:
                await _forever()


async def _forever() -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    main(ObanPeer())
