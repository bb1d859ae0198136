"""procrastinate, on psycopg; finished jobs are deleted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.shell import NOTE, Clock, Producer, main


def _app(url: str, clock: Clock | None = None) -> tuple[Any, Any]:
    app = App(connector=PsycopgConnector(conninfo=url))

    async def noop(n: int, note: str) -> None:
        if clock is not None:
            clock.seen(n)

    return app, app.task(name="noop")(noop)


class _Producer:
    def __init__(self, task: Any) -> None:
        self._task = task

    async def one(self, n: int) -> None:
        await self._task.defer_async(n=n, note=NOTE)

    async def many(self, count: int) -> None:
        await self._task.batch_defer_async(*({"n": n, "note": NOTE} for n in range(count)))


class Procrastinate:
    """The library."""

    async def setup(self, url: str) -> None:
        app, _ = _app(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        app, task = _app(url)
        async with app.open_async():
            yield _Producer(task)

    async def work(self, url: str, concurrency: int, clock: Clock) -> None:
        app, _ = _app(url, clock)
        async with app.open_async():
            await clock.go()
            await app.run_worker_async(concurrency=concurrency, delete_jobs="always", install_signal_handlers=False)


if __name__ == "__main__":
    main(Procrastinate())
