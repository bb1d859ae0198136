"""`supervisor jobs retry`, `cancel`, `reschedule` and `release-order`: what each does to a batch, and tells of it.

Always true: an order counts what the database answered, batch by batch, so that what it tells is what was done even
when more was asked for.

Elsewhere: the options that they share, and how they end (ordering.py); how an order reaches many jobs (batches.py).
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.batches import Answered, Order
from supervisor.cli.failures import wrong_use
from supervisor.cli.selection import read_length
from supervisor.wording import ago, count, length

if TYPE_CHECKING:
    from psycopg import Connection
    from rich.console import Console

_GRACE_S = 5.0
_LONGEST_GRACE_S = 86400.0
_LONGEST_DELAY_S = 10 * 366 * 86400.0
_TOLD_ONE_BY_ONE = 20


class Retry(Order):
    """Put dead or cancelled jobs back into their queues, with their counts reset."""

    word = "retry"
    statuses = ("dead", "cancelled")
    unfit = "neither dead nor cancelled"
    why_left = "a living job holds their unique key; cancel that one first"

    def __init__(self) -> None:
        super().__init__()
        self._retried = 0

    def send(self, conn: Connection, schema: str, batch: list[int]) -> Answered:
        from supervisor.db import operate

        back, taken = operate.retry(conn, schema, batch)
        self._retried += len(back)
        self.left += taken
        return Answered(back, taken)

    def document(self) -> dict[str, Any]:
        return {"retried": self._retried, "unique_key_taken": self.left}

    def tell(self, out: Console) -> None:
        out.print(f"{count(self._retried)} put back", style="green" if self._retried else "yellow")


class Cancel(Order):
    """Take jobs out of their queues; the handlers of running ones are told to stop."""

    word = "cancel"
    statuses = ("queued", "running")
    unfit = "neither queued nor running"

    def __init__(
        self,
        force: Annotated[
            bool, typer.Option("--force", help="Kill the workers of running ones that do not stop within --grace.")
        ] = False,
        grace: Annotated[
            str | None,
            typer.Option(metavar="LENGTH", help="With --force: how long a handler may take to stop.  [default: 5s]"),
        ] = None,
    ) -> None:
        super().__init__()
        if grace is not None and not force:
            raise wrong_use("--grace", "needs --force: without it no worker is killed")
        patience_s = _GRACE_S if grace is None else read_length("--grace", grace, _LONGEST_GRACE_S)
        self._kill_s = patience_s if force else None
        self._became: Counter[str] = Counter()

    def send(self, conn: Connection, schema: str, batch: list[int]) -> Answered:
        from supervisor.db import operate

        done = operate.cancel(conn, schema, batch, kill_s=self._kill_s)
        self._became.update(done.values())
        return Answered(done)

    def document(self) -> dict[str, Any]:
        return {"cancelled": self._became["cancelled"], "asked": self._became["asked"]}

    def tell(self, out: Console) -> None:
        cancelled, asked = self._became["cancelled"], self._became["asked"]
        told = f", {count(asked)} running and told to stop" if asked else ""
        if asked and self._kill_s is not None:
            told += f" within {length(self._kill_s)}"
        out.print(f"{count(cancelled)} cancelled{told}", style="green" if cancelled + asked else "yellow")


class Reschedule(Order):
    """Give queued jobs another time; with neither --in nor --at it is now. Jobs that run are left alone."""

    word = "reschedule"
    statuses = ("queued",)
    unfit = "not queued"

    def __init__(
        self,
        in_: Annotated[
            str | None, typer.Option("--in", metavar="LENGTH", help="So long from now: 90, 10s, 5m, 1h30m, 2d.")
        ] = None,
        at: Annotated[str | None, typer.Option(metavar="TIME", help="Then: 2030-01-31T09:00:00+01:00.")] = None,
    ) -> None:
        from supervisor.cli.enqueue import point, read_option, seconds

        super().__init__()
        if in_ is not None and at is not None:
            raise wrong_use("--in", "and --at: give one of the two")
        self._delay_s: float | None = None if in_ is None else read_option("--in", in_, seconds)
        if self._delay_s is not None and self._delay_s > _LONGEST_DELAY_S:
            raise wrong_use("--in", "is above ten years")
        self._at: datetime | None = None if at is None else read_option("--at", at, point)
        self._moved: dict[int, datetime] = {}

    def send(self, conn: Connection, schema: str, batch: list[int]) -> Answered:
        from supervisor.db import operate

        done = operate.reschedule(conn, schema, batch, at=self._at, delay_s=self._delay_s)
        self._moved.update(done)
        return Answered(done)

    def document(self) -> dict[str, Any]:
        return {"rescheduled": [{"id": job_id, "run_at": run_at} for job_id, run_at in self._moved.items()]}

    def tell(self, out: Console) -> None:
        if 0 < len(self._moved) <= _TOLD_ONE_BY_ONE:
            for job_id, run_at in self._moved.items():
                out.print(f"job {job_id} is due {ago(run_at)}", style="green")
            return
        due = f", due {ago(next(iter(self._moved.values())))}" if self._moved else ""
        out.print(f"{count(len(self._moved))} given another time{due}", style="green")


class ReleaseOrder(Order):
    """Let the next jobs go whose ordering keys dead ones hold (on_dead="hold")."""

    word = "release the keys of"
    statuses = ("dead",)
    unfit = "held no ordering key, or not dead"

    def __init__(self) -> None:
        super().__init__()
        self._released = 0

    def send(self, conn: Connection, schema: str, batch: list[int]) -> Answered:
        from supervisor.db import operate

        done = operate.release_order(conn, schema, batch)
        self._released += len(done)
        return Answered(done)

    def document(self) -> dict[str, Any]:
        return {"released": self._released}

    def tell(self, out: Console) -> None:
        said = f"{count(self._released)} no longer hold their ordering keys"
        out.print(said, style="green" if self._released else "yellow")
