"""Steady load: transactions that enqueue beside a row of their own, some late, some rolled back.

The table `chaos_asked` is the truth about what was enqueued: its row commits in the same transaction as
the job, so a commit whose answer was lost is known all the same. When it was committed is written down afterwards,
by who has the answer.

Elsewhere: jobs with keys and with parents (keys.py).
"""

import random
import threading
import time
from collections import deque
from typing import Any, Final

import psycopg

from supervisor import NewJob, enqueue_many
from tests.chaos.keys import with_keys, with_parents

_FAMILIES: Final = 0.15
_RECENT: Final = 200

SCHEMA: Final = """
create table chaos_asked (
    job_id bigint not null, kind text not null, began timestamptz not null default transaction_timestamp(),
    committed timestamptz, ordering_key text, concurrency_key text, concurrency_limit int, rate_key text,
    rate_limit int, after bigint[], after_failed text);
create index on chaos_asked (job_id);
create table chaos_exact (
    job_id bigint not null, token bigint not null, at timestamptz not null default clock_timestamp());
create table chaos_run (
    job_id bigint not null, token bigint not null, attempt integer not null, pid integer not null, note text not null,
    session bigint, at timestamptz not null default clock_timestamp());
create index on chaos_run (job_id);
"""


def pick(rng: random.Random, *, poison: float) -> NewJob:
    """One job of the mix."""
    at = rng.random()
    queue = rng.choice(["a", "b", "c"])
    priority = rng.choice([0, 0, 0, 5])
    common: dict[str, Any] = {"queue": queue, "priority": priority}
    if at < poison:
        return NewJob("c.poison", {}, max_crashes=2, **common)
    if at < 2 * poison:
        return NewJob("c.stubborn", {}, max_attempts=2, **common)
    if at < 0.03:
        return NewJob("c.broken", {}, max_attempts=3, **common)
    if at < 0.10:
        return NewJob("c.flaky", {"failures": rng.randint(1, 2)}, max_attempts=50, **common)
    if at < 0.20:
        return NewJob("c.exact", {}, max_attempts=50, **common)
    if at < 0.35:
        return NewJob("c.async", {"seconds": rng.choice([0.01, 0.05, 0.3])}, **common)
    if at < 0.45:
        return NewJob("c.sync", {"seconds": rng.choice([0.005, 0.02, 0.2])}, **common)
    if at < 0.50:
        return NewJob("c.fast", {}, in_=rng.choice([0.5, 2.0]), **common)
    return NewJob("c.fast", {}, **common)


def ask(conn: psycopg.Connection[Any], kind: str, payloads: list[dict[str, Any]], **common: Any) -> None:
    """Enqueue jobs of one kind and write down that they were, in one transaction; the caller commits."""
    jobs = [NewJob(kind, payload, **common) for payload in payloads]
    _ask(conn, jobs)


def _ask(conn: psycopg.Connection[Any], jobs: list[NewJob]) -> list[int]:
    made = [answer.id for answer in enqueue_many(conn, jobs)]
    with conn.cursor() as cur:
        cur.executemany(
            "insert into chaos_asked (job_id, kind, ordering_key, concurrency_key, concurrency_limit, rate_key,"
            " rate_limit, after, after_failed) values (%s, %s, %s, %s, %s, %s, %s, %s::bigint[], %s)",
            [
                (
                    job_id, job.kind, job.ordering_key, job.concurrency_key, job.concurrency_limit, job.rate_key,
                    job.rate_limit, None if job.after is None else list(job.after), job.after_failed,
                )
                for job_id, job in zip(made, jobs, strict=True)
            ],
        )  # fmt: skip
    return made


class Enqueuer(threading.Thread):
    """One producer: about *per_s* jobs a second until `stop`.

    Args:
        recent: ids of jobs that were committed, by any producer: parents of later ones.
    """

    def __init__(self, conninfo: str, seed: int, per_s: float, poison: float, recent: deque[int]) -> None:
        super().__init__(daemon=True, name="enqueuer")
        self._conninfo = conninfo
        self._rng = random.Random(seed)
        self._per_s = per_s
        self._poison = poison
        self._recent = recent
        self._halt = threading.Event()
        self.rolled_back = 0
        self.interrupted = 0

    def stop(self) -> None:
        self._halt.set()

    def run(self) -> None:
        conn: psycopg.Connection[Any] | None = None
        next_at = time.monotonic()
        while not self._halt.is_set():
            count = self._rng.choice([1, 1, 1, 5, 20])
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(self._conninfo, application_name="chaos enqueuer", connect_timeout=2)
                self._one(conn, count)
            except psycopg.Error:
                self.interrupted += 1
                if conn is not None:
                    conn.close()
                conn = None
                self._halt.wait(0.1)
            next_at = max(next_at + count / self._per_s, time.monotonic() - 1.0)
            self._halt.wait(max(0.0, next_at - time.monotonic()))
        if conn is not None:
            conn.close()

    def _one(self, conn: psycopg.Connection[Any], count: int) -> None:
        rng = self._rng
        ids = _ask(conn, [with_keys(rng, pick(rng, poison=self._poison)) for _ in range(count)])
        if rng.random() < _FAMILIES:
            parents = [*ids, *self._recent]
            jobs = [with_keys(rng, pick(rng, poison=self._poison)) for _ in range(rng.choice([1, 1, 3]))]
            ids += _ask(conn, [with_parents(rng, job, parents) for job in jobs])
        fate = rng.random()
        if fate < 0.05:
            self._halt.wait(rng.uniform(0.2, 2.0))  # a long business transaction
        if fate > 0.93:
            conn.rollback()
            self.rolled_back += len(ids)
        else:
            conn.commit()
            self._recent.extend(ids)
            conn.execute(
                "update chaos_asked set committed = clock_timestamp()"
                " where job_id = any(%s) and ordering_key is not null",
                [ids],
            )
            conn.commit()


def recent_jobs() -> deque[int]:
    """What producers share: the last ids that were committed."""
    return deque(maxlen=_RECENT)
