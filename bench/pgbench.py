"""Plain SQL to compare with: a queue as one writes it by hand, drained by pgbench.

One table, an index on what is queued, and per batch two statements, each its own commit: claim (up to BATCH rows,
skipping locked ones, payloads sent to the client) and delete. No history, no leases, no retries, no Python. It is
the ceiling for anything that does its work through two such commits per batch.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from bench.server import BenchServer

BATCH: Final = 50
CLIENTS: Final = 4

TABLE: Final = """
create table plain_job (
    id           bigint generated always as identity primary key,
    run_at       timestamptz not null default clock_timestamp(),
    created_at   timestamptz not null default clock_timestamp(),
    started_at   timestamptz,
    locked_by    integer,
    attempts     integer  not null default 0,
    max_attempts integer  not null default 20,
    priority     smallint not null default 0,
    status       text     not null default 'queued',
    queue        text     not null default 'default',
    kind         text     not null,
    payload      jsonb    not null,
    headers      jsonb    not null default '{}',
    errors       jsonb    not null default '[]'
);
create index plain_job_queued on plain_job (queue, priority, run_at, id) where status = 'queued'
"""

CLAIM: Final = """
with due as materialized (
    select ctid from plain_job
     where status = 'queued' and queue = 'default' and run_at <= now()
     order by priority, run_at, id limit {batch}
       for update skip locked),
claimed as (
    update plain_job j
       set status = 'running', attempts = attempts + 1, locked_by = {client}, started_at = now()
      from due
     where j.ctid = due.ctid
    returning j.id, j.kind, j.payload)"""

_SCRIPT: Final = f"""
{CLAIM.format(batch=BATCH, client=":client_id")}
select coalesce(array_agg(id), '{{}}')::text as ids, coalesce(string_agg(kind || payload::text, ' '), '') as work
  from claimed \\gset
delete from plain_job where id = any(:ids::bigint[]);
"""


@dataclass(frozen=True, slots=True)
class Drained:
    """One run: jobs that were taken, and the seconds it took."""

    jobs: int
    seconds: float


def fill(url: str, kind: str, payload: str, jobs: int) -> None:
    """Make a plain table with *jobs* rows."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(TABLE.encode())
        conn.execute(
            "insert into plain_job (kind, payload) select %s, jsonb_set(%s::jsonb, '{n}', to_jsonb(n))"
            " from generate_series(1, %s::int) n",
            [kind, payload, jobs],
        )
        conn.execute("analyze plain_job")


def drain(server: BenchServer, database: str, jobs: int) -> Drained:
    """Let pgbench take *jobs* rows out of the plain table of *database*."""
    seconds = _run(server, database, -(-jobs // (BATCH * CLIENTS)))
    left = int(server.execute("select count(*) from plain_job", database)[0][0])
    return Drained(jobs - left, seconds)


def _run(server: BenchServer, database: str, transactions: int) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(_SCRIPT)
        script.flush()
        words = f"-n -M prepared -c {CLIENTS} -j {CLIENTS} -t {transactions} -h 127.0.0.1 -p {server.port} -U postgres"
        done = subprocess.run(
            [str(_program(server)), *words.split(), "-f", script.name, database],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr
    tps = re.search(r"^tps = ([0-9.]+) \(without initial connection time\)", said, re.MULTILINE)
    if done.returncode != 0 or tps is None or "number of failed transactions: 0 " not in said:
        raise RuntimeError(f"pgbench failed: {said.strip()[-800:]}")
    return transactions * CLIENTS / float(tps[1])


def _program(server: BenchServer) -> Path:
    program = server.programs / "pgbench"
    if not program.exists():
        raise RuntimeError(f"{program} is missing: the extra 'embedded' of this release has no pgbench")
    return program
