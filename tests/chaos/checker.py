"""The verdict, from what is stored and what was logged; it knows nothing of how the service works inside.

lost            a committed job that is neither done nor dead, or done without a whole run
doubled         a second whole run of a job that did not ask for one, with no lapsed lease to explain it
wrongly charged a crash that no death and no lapsed lease explains; a failure of a kind that never fails
stuck           a job left queued or running after everything has been calm
inexact         an effect of job.transaction() that is not there exactly once
out of order    two jobs of one ordering_key at one time, or the later one first
over limit      more of a concurrency_key at one time than its limit
too soon        two starts of a rate_key closer than its rate
early           a child that ran before its parents had ended, or though one is dead
stranded        what is left of gates after everything has been calm
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.keys import kept
from tests.support.database import Database

FINDINGS: Final = (
    "lost", "doubled", "wrongly_charged", "stuck", "overlapping", "inexact",
    "out_of_order", "over_limit", "too_soon", "early", "stranded",
)  # fmt: skip


@dataclass
class Verdict:
    """The table of a run."""

    jobs: int = 0
    runs: int = 0
    done: int = 0
    dead: int = 0
    retried_whole: int = 0
    explained: dict[str, int] = field(default_factory=dict)
    lost: list[Any] = field(default_factory=list)
    doubled: list[Any] = field(default_factory=list)
    wrongly_charged: list[Any] = field(default_factory=list)
    stuck: list[Any] = field(default_factory=list)
    overlapping: list[Any] = field(default_factory=list)
    inexact: list[Any] = field(default_factory=list)
    out_of_order: list[Any] = field(default_factory=list)
    over_limit: list[Any] = field(default_factory=list)
    too_soon: list[Any] = field(default_factory=list)
    early: list[Any] = field(default_factory=list)
    stranded: list[Any] = field(default_factory=list)
    keys: dict[str, Any] = field(default_factory=dict)
    """How many jobs had keys and parents, and how many of a limit were seen at one time."""

    @property
    def clean(self) -> bool:
        return not any(getattr(self, name) for name in FINDINGS)

    def table(self) -> str:
        lines = [
            f"jobs              {self.jobs}",
            f"runs              {self.runs}",
            f"done              {self.done}",
            f"dead              {self.dead}",
            f"whole runs again  {self.retried_whole}   explained: {self.explained or '{}'}",
            f"keys              {', '.join(f'{name} {count}' for name, count in self.keys.items())}",
            *(f"{name.replace('_', ' '):17} {len(getattr(self, name))}" for name in FINDINGS),
        ]
        for name in FINDINGS:
            lines += [f"  {name}: {json.dumps(found, default=str)}" for found in getattr(self, name)[:10]]
        return "\n".join(lines)


def check(db: Database) -> Verdict:
    """Compare everything that should agree."""
    verdict = Verdict()
    verdict.jobs = db.value("select count(*)::int from chaos_asked")
    verdict.runs = db.value("select count(*)::int from chaos_run where note = 'begin'")
    verdict.done = db.value("select count(*)::int from supervisor.history")
    verdict.dead = db.value("select count(*)::int from supervisor.dead_letter")
    _stuck(db, verdict)
    _lost(db, verdict)
    _doubled(db, verdict)
    _charges(db, verdict)
    verdict.overlapping = db.rows(
        "select a.job_id, a.token, b.token, a_end.at, b.at, s.closed_as, s.closed_at from chaos_run a"
        " join chaos_run a_end on a_end.job_id = a.job_id and a_end.token = a.token and a_end.note = 'end'"
        " join chaos_run b on b.job_id = a.job_id and b.token > a.token and b.note = 'begin'"
        " left join supervisor.session s on s.id = a.session"
        " where a.note = 'begin' and b.at < a_end.at and not (s.closed_as = 'reaped' and s.closed_at <= b.at)"
        # A run that began after its lease had been taken away knows no session: nothing was broken by it.
    )
    verdict.inexact = db.rows(
        "select a.job_id, a.kind, count(e.job_id)::int from chaos_asked a left join chaos_exact e using (job_id)"
        " where a.kind in ('c.exact', 'c.hold') and a.job_id not in (select id from chaos_waiting)"
        " and not exists (select from supervisor.dead_letter d where d.id = a.job_id and d.reason = 'parent')"
        " group by 1, 2 having count(e.job_id) <> 1"
    )
    findings, verdict.keys = kept(db)
    for name, found in findings.items():
        setattr(verdict, name, found)
    return verdict


def _stuck(db: Database, verdict: Verdict) -> None:
    verdict.stuck = db.rows(
        "select id, kind, status, attempts, crashes, suspect, run_at, now() - run_at, last_error, locked_by"
        " from supervisor.jobs where status in ('queued', 'running') and id not in (select id from chaos_waiting)"
        " limit 50"
    )


def _lost(db: Database, verdict: Verdict) -> None:
    verdict.lost = db.rows(
        "select a.job_id, a.kind, 'gone' from chaos_asked a"
        " where not exists (select from supervisor.jobs j where j.id = a.job_id)"
        " union all "
        "select a.job_id, a.kind, 'done without a whole run' from chaos_asked a"
        " join supervisor.history h on h.id = a.job_id"
        " where a.kind not in ('c.exact', 'c.hold') and not exists"
        " (select from chaos_run r where r.job_id = a.job_id and r.note = 'end')"
        " union all "
        "select d.id, d.kind, 'dead: ' || d.reason from supervisor.dead_letter d"
        " left join chaos_asked a on a.job_id = d.id"
        " where d.kind not in ('c.broken', 'c.poison', 'c.stubborn') and d.reason <> 'crashes'"
        " and not (d.reason = 'parent' and a.after_failed = 'cancel'"
        "          and exists (select from supervisor.dead_letter p where p.id = any(a.after)))"
        " union all "
        "select d.id, d.kind, 'cancelled without a reason' from supervisor.dead_letter d"
        " left join chaos_asked a on a.job_id = d.id"
        " where d.status = 'cancelled' and a.after_failed is distinct from 'cancel'"
        " union all "
        "select h.id, h.kind, 'invented' from supervisor.history h"
        " where not exists (select from chaos_asked a where a.job_id = h.id)"
    )
    done = db.value("select count(*)::int from supervisor.history where kind in ('c.broken', 'c.poison', 'c.stubborn')")
    if done:
        verdict.lost.append(("done though it cannot be", done))


def _doubled(db: Database, verdict: Verdict) -> None:
    """A whole run after a whole run.

    Right only if the first one's session was taken for dead, or if the job's own record says that its
    process ended before the result could be reported: its last effect was committed, and then it was killed.
    """
    again = db.rows(
        "select job_id, array_agg(token order by token) from chaos_run where note = 'end'"
        " group by job_id having count(*) > 1"
    )
    verdict.retried_whole = len(again)
    for job_id, tokens in again:
        [(errors,)] = db.rows("select errors from supervisor.jobs where id = %s", (job_id,))
        said = {error["claims"]: error["event"] for error in errors}
        for token in tokens[:-1]:
            closed = db.rows(
                "select s.closed_as, s.name, s.closed_at, r.at from chaos_run r"
                " left join supervisor.session s on s.id = r.session"
                " where r.job_id = %s and r.token = %s and r.note = 'begin'",
                (job_id, token),
            )
            if said.get(token) in ("suspect", "interrupted"):
                why = "killed after its effect"
            elif said.get(token) == "crashed":
                why = "lease passed, or killed after its effect"
            elif closed and closed[0][0] == "reaped":
                why = "lease passed"
            else:
                verdict.doubled.append((job_id, tokens, token, said, closed))
                continue
            verdict.explained[why] = verdict.explained.get(why, 0) + 1


def _charges(db: Database, verdict: Verdict) -> None:
    charged = db.rows(
        "select id, kind, crashes, attempts, status, errors from supervisor.jobs"
        " where status in ('dead', 'queued', 'running') and crashes > 0"
        " union all select id, kind, crashes, attempts, 'done', null from supervisor.history where crashes > 0"
    )
    for job_id, kind, crashes, _, _, errors in charged:
        # A crash needs a run that began and did not end, or a lease that passed (a job that was only held counts too).
        cut = db.value(
            "select count(*)::int from chaos_run b where b.job_id = %s and b.note = 'begin' and not exists"
            " (select from chaos_run e where e.job_id = b.job_id and e.token = b.token and e.note = 'end')",
            (job_id,),
        )
        passed = db.value("select count(*)::int from supervisor.session where closed_as = 'reaped'")
        said = [error for error in errors or [] if error["event"] == "crashed"]
        by_lease = sum("lease passed" in error["error"] for error in said)
        if crashes > cut + by_lease and not (errors is None and passed) and kind not in ("c.exact", "c.hold"):
            verdict.wrongly_charged.append((job_id, kind, crashes, cut, errors))
    verdict.wrongly_charged += db.rows(
        "select id, kind, attempts, last_error from supervisor.jobs"
        " where kind in ('c.fast', 'c.async', 'c.sync') and attempts > 1"
    )
