"""Jobs with keys and with parents in the chaos run: which there are, and whether what they promise was kept.

    with_keys(), with_parents() --> load --> chaos_asked: keys, limits, parents --.
    handlers: when each run began and ended ----------------------------------+--> kept()
    a trigger: each claim of such a job, and under which session it was held --'

A run counts as one as long as it held its lease: one that began later, or went on after its session had been reaped,
says nothing of keys. Its end is the last thing that its handler wrote, so each run lasted at least that long; one
that was killed or has failed counts as long as it began.

Elsewhere: the promises (docs/order.md).
"""

import random
from dataclasses import replace
from typing import Any, Final

from supervisor import NewJob
from tests.support.database import Database

ORDERED: Final = 20
LIMITS: Final = {"limit 1": 1, "limit 2": 2, "limit 3": 3}
RATES: Final = {"5 a second": 5, "10 a second": 10}
"""Starts in a second."""

SCHEMA: Final = """
create table chaos_lease (
    job_id bigint not null, token bigint not null, session bigint not null, started_at timestamptz not null,
    claim boolean not null);
create index on chaos_lease (job_id, token);
create function chaos_note_lease() returns trigger language plpgsql as $$ begin
    insert into chaos_lease values (new.id, new.claims, new.lease, new.started_at, old.lease is null);
    return null;
end $$;
create trigger chaos_note_lease after update on supervisor.job for each row
  when (new.gated and new.lease is not null and new.lease is distinct from old.lease)
  execute function chaos_note_lease();

-- Runs that held their lease when they began. ended: null for one that was cut off or has failed.
create view chaos_held as
select * from (
    select b.job_id, b.token, b.at as began, coalesce(e.at, x.at) as ended, (
               select min(s.closed_at) from supervisor.session s
                where s.closed_as = 'reaped'
                  and (s.id = b.session or s.id in (
                       select l.session from chaos_lease l where l.job_id = b.job_id and l.token = b.token))) as lapsed
      from chaos_run b
      left join chaos_run e on e.job_id = b.job_id and e.token = b.token and e.note = 'end'
      left join chaos_exact x on x.job_id = b.job_id and x.token = b.token
     where b.note = 'begin' and b.session is not null) run
 where run.lapsed is null or run.lapsed > run.began;

create view chaos_ended as
select id, finished_at, 'done' as status from supervisor.history
union all select id, finished_at, status from supervisor.dead_letter;

-- Jobs that wait for a dead one, as they were told to, and those that wait for these.
create view chaos_waiting as
with recursive waiting (id) as (
    select l.child from supervisor.job_after l join supervisor.dead_letter d on d.id = l.parent where l.failed = 'hold'
    union select l.child from supervisor.job_after l join waiting w on w.id = l.parent)
select id from waiting;
"""

_ONE_AT_A_TIME: Final = """
with own as materialized (
    select a.ordering_key as key, a.job_id, min(r.began) as first, f.finished_at
      from chaos_asked a join chaos_held r using (job_id) left join chaos_ended f on f.id = a.job_id
     where a.ordering_key is not null group by 1, 2, 4)
select key, job_id, first, before from (
    select *, max(coalesce(finished_at, 'infinity')) over (
               partition by key order by first rows between unbounded preceding and 1 preceding) as before
      from own) x
 where before > first
"""
_IN_ORDER: Final = """
with own as materialized (
    select a.ordering_key as key, a.job_id, a.began, a.committed, min(r.began) as first
      from chaos_asked a join chaos_held r using (job_id)
     where a.ordering_key is not null and a.after is null group by 1, 2, 3, 4)
select x.key, x.job_id, y.job_id, x.committed, y.began, x.first, y.first
  from own x join own y on y.key = x.key
 where x.committed < y.began and (y.first < x.first or y.job_id < x.job_id)
"""
_AT_ONCE: Final = """
with run as materialized (
    select a.concurrency_key as key, a.concurrency_limit as most, r.job_id, r.token, r.began,
           least(r.ended, r.lapsed) as ended, r.ended is null as cut
      from chaos_asked a join chaos_held r using (job_id) where a.concurrency_key is not null)
select b.key, b.most, b.job_id, b.token, b.began, 1 + count(x.job_id)::int as at_once
  from run b
  left join run x on x.key = b.key and not x.cut and x.began <= b.began and x.ended > b.began
   and (x.job_id, x.token) <> (b.job_id, b.token)
 group by 1, 2, 3, 4, 5
"""
_STARTS: Final = """
select * from (
    select a.rate_key as key, l.job_id, l.token, l.started_at, 1.0 / a.rate_limit as step,
           extract(epoch from l.started_at - lag(l.started_at) over key) as gap
      from chaos_asked a join chaos_lease l using (job_id) where a.rate_key is not null and l.claim
    window key as (partition by a.rate_key order by l.started_at)) x
 where gap < step
"""
_CHILDREN: Final = """
select a.job_id, p.id as parent, a.after_failed, f.status, f.finished_at, min(r.began) as first
  from chaos_asked a join chaos_held r using (job_id)
 cross join lateral unnest(a.after) as p (id)
  left join chaos_ended f on f.id = p.id
 group by 1, 2, 3, 4, 5
having f.status is null or min(r.began) < f.finished_at or (f.status <> 'done' and a.after_failed <> 'run')
"""
_STRANDED: Final = """
select g.job_id, g.gate, g.due_at, g.ordering_key, g.concurrency_key, g.rate_key from supervisor.gated g
 where g.job_id not in (select id from chaos_waiting)
   and not exists (select from supervisor.dead_letter d where d.id = g.job_id)
union all
select l.child, null, null, 'waits for ' || l.parent, null, null from supervisor.job_after l
 where l.child not in (select id from chaos_waiting)
   and not exists (select from supervisor.dead_letter d where d.id = l.child)
"""


def with_keys(rng: random.Random, job: NewJob) -> NewJob:
    """*job*, which one time in six has a key; a few have several."""
    given: dict[str, Any] = {}
    at = rng.random()
    if at < 0.08 or at > 0.99:
        given |= {"ordering_key": f"order {rng.randrange(ORDERED)}"}
    if 0.07 < at < 0.12 or at > 0.99:
        key = rng.choice(sorted(LIMITS))
        given |= {"concurrency_key": key, "concurrency_limit": LIMITS[key]}
    if 0.11 < at < 0.15 or at > 0.995:
        key = rng.choice(sorted(RATES))
        given |= {"rate_key": key, "rate_limit": RATES[key], "rate_period": 1.0}
    return replace(job, **given) if given else job


def with_parents(rng: random.Random, job: NewJob, ids: list[int]) -> NewJob:
    """*job*, to run after some of *ids*."""
    parents = rng.sample(ids, min(len(ids), rng.choice([1, 1, 2, 5])))
    return replace(job, after=parents, after_failed=rng.choice(["hold", "cancel", "run"]))


def kept(db: Database) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """What was not kept, by finding; and how many jobs were there that could have shown it."""
    at_once = db.rows(_AT_ONCE)
    counts = db.rows(
        "select count(ordering_key)::int, count(concurrency_key)::int, count(rate_key)::int, count(after)::int"
        " from chaos_asked"
    )[0]
    most: dict[str, int] = {}
    for key, *_, together in at_once:
        most[key] = max(most.get(key, 0), together)
    return {
        "out_of_order": db.rows(_ONE_AT_A_TIME) + db.rows(_IN_ORDER),
        "over_limit": [row for row in at_once if row[-1] > row[1]],
        "too_soon": db.rows(_STARTS),
        "early": db.rows(_CHILDREN),
        "stranded": db.rows(_STRANDED),
    }, {
        **dict(zip(("ordered", "limited", "paced", "children"), counts, strict=True)),
        "most at once": most,
        "told to wait for a dead one": db.value("select count(*)::int from chaos_waiting"),
    }  # fmt: skip
