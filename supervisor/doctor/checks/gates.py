"""Checks of what holds jobs back: paused queues, limits, keys that dead jobs hold, dead parents."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.db.examine import identifier
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, problem, warning
from supervisor.wording import count, length

_NAMES: Final = 5
_IDS: Final = 20
_KEY: Final = 60


async def queues(look: Look) -> Iterable[Verdict]:
    """Queues that give no jobs: paused for long and maybe forgotten, or with a limit that nobody has counted for."""
    found, facts = [], await look.db.queues()
    late = [one for one in facts if one.paused_s is not None and one.paused_s > look.limits.paused_s]
    due = await look.db.due() if late else {}
    for one in late:
        by = f" by {one.paused_by}" if one.paused_by else ""
        said = f"queue {one.name} was paused {length(one.paused_s)} ago{by}"
        remedy = f"`supervisor queues resume {shlex.quote(one.name)}`, unless it is meant to stay so"
        if one.name in due:
            found.append(warning(f"{said}, and jobs in it have been due for {length(due[one.name])}", remedy))
        else:
            found.append(note(f"{said}; no job in it is due", remedy))
    found += [
        problem(
            f"nothing is claimed from queue {one.name}: its limit of {one.max_running} was set "
            f"{length(one.uncounted_s)} ago, and what ran then has not been counted",
            "run a supervisor, which does it, or "
            f"`supervisor queues set {shlex.quote(one.name)} --max-running {one.max_running}`",
        )
        for one in facts
        if one.uncounted_s is not None and one.uncounted_s > look.limits.late_s
    ]
    return found or [ok("no queue has been paused for long, and every limit is counted")]


async def keys(look: Look) -> Iterable[Verdict]:
    """Ordering keys that dead jobs hold: the later jobs of such a key wait for an operator."""
    held = await look.db.held_keys(limit=look.limits.gates)
    blocking = [one for one in held if one.behind]
    if not held:
        return [ok("no dead job holds an ordering key")]
    if not blocking:
        return [note(f"{count(len(held))} dead jobs hold their ordering keys, and none waits behind them")]
    named = ", ".join(f"{_key(one.key)} (job {one.job_id}, {count(one.behind)} behind it)" for one in blocking[:_NAMES])
    more = f" and {count(len(blocking) - _NAMES)} more" if len(blocking) > _NAMES else ""
    ids = _ids([one.job_id for one in blocking])
    return [
        warning(
            f"dead jobs hold {count(len(blocking))} ordering keys that jobs wait for: {named}{more}",
            f"put right why they died, then `supervisor jobs retry {ids}`; or let the next ones go without them: "
            f"`supervisor jobs release-order {ids}`",
        )
    ]


async def parents(look: Look) -> Iterable[Verdict]:
    """Jobs that wait for dead ones: nothing happens until somebody retries those, or they are pruned."""
    links = await look.db.dead_parents(limit=look.limits.gates)
    if not links:
        return [ok("no job waits for a dead one")]
    children = sorted({one.child for one in links})
    dead = {one.parent: one.status for one in links}
    named = ", ".join(f"{one} ({status})" for one, status in list(dead.items())[:_NAMES])
    more = f" and {count(len(dead) - _NAMES)} more" if len(dead) > _NAMES else ""
    return [
        warning(
            f"{count(len(children))} jobs (ids {', '.join(map(str, children[:_NAMES]))}"
            f"{', ...' if len(children) > _NAMES else ''}) wait for jobs that are over: {named}{more}",
            f"put right why those ended so, then `supervisor jobs retry {_ids(list(dead))}`; or give up what waits: "
            f"`supervisor jobs cancel {_ids(children)}`. When the dead ones are pruned, what waits is cancelled",
        )
    ]


async def odd(look: Look) -> Iterable[Verdict]:
    """Keys without their job, which hold up others for ever; jobs that nobody will let in. Only a hand makes them."""
    found, schema = await look.db.odd_gates(limit=look.limits.gates), identifier(look.schema)
    verdicts = []
    if gone := found["gone"]:
        ids = ", ".join(map(str, gone[:_IDS]))
        verdicts.append(
            problem(
                f"{count(len(gone))} jobs are gone and have left their keys (ids {ids}"
                f"{', ...' if gone[_IDS:] else ''}): others of these keys wait for them",
                f"`with gone as (delete from {schema}.gated g where g.job_id in ({ids}) returning g.ordering_key, "
                f"g.concurrency_key) insert into {schema}.gate_note (gate, key) select 2, ordering_key from gone "
                "where ordering_key is not null union all select 3, concurrency_key from gone "
                "where concurrency_key is not null`",
            )
        )
    if stuck := found["stuck"]:
        verdicts.append(
            problem(
                f"{count(len(stuck))} jobs wait for nothing, and nobody will let them in (ids "
                f"{', '.join(map(str, stuck[:_NAMES]))}{', ...' if stuck[_NAMES:] else ''})",
                f"`supervisor jobs reschedule {_ids(stuck)}`, which makes them due now",
            )
        )
    return verdicts or [ok("what waits at gates can go on (a sample)")]


def _key(text: str) -> str:
    return text if len(text) <= _KEY else text[: _KEY - 1] + "…"


def _ids(ids: Sequence[int]) -> str:
    """As many as a command takes at once; asked again, the doctor names the next ones."""
    return " ".join(map(str, ids[:_IDS]))
