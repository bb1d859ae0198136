"""Checks of the jobs: whether somebody runs them, and what was left lying."""

from collections.abc import Iterable

from supervisor.db.examine import identifier
from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, note, ok, problem, warning
from supervisor.settings import ALL_QUEUES
from supervisor.wording import count, length

_NAMES = 10


async def presence(look: Look) -> Iterable[Verdict]:
    """Whether a supervisor runs while jobs are due."""
    limits, facts, due = look.limits, await look.db.presence(late_s=look.limits.late_s), await look.db.due()
    found = []
    late = {queue: waited for queue, waited in due.items() if waited > limits.waited_s}
    if not facts.living and late:
        found.append(
            problem(
                f"no supervisor runs, and jobs are due in {_some(sorted(late))}, the first one for "
                f"{length(max(late.values()))}",
                "start one: `supervisor run`",
            )
        )
    elif not facts.living:
        found.append(note("no supervisor runs", "start one: `supervisor run`"))
    if facts.late_sessions:
        found.append(
            warning(
                f"{count(facts.late_sessions)} workers' leases passed more than {length(limits.late_s)} ago and nobody "
                "has taken their jobs back",
                "run a supervisor, which does it within seconds: `supervisor run`",
            )
        )
    if facts.wishes:
        table = f"{identifier(look.schema)}.waiting"
        found.append(
            warning(
                f"{count(facts.wishes)} wishes for wake-ups of supervisors that are gone make every enqueue notify "
                "for nobody",
                f"run a supervisor, which removes them within a minute, or `delete from {table} w where not exists "
                f"(select from {identifier(look.schema)}.parent p where p.id = w.parent and p.expires_at > now())`",
            )
        )
    mine = {queue.name for queue in look.settings.queues}
    others = sorted(queue for queue in late if queue not in mine) if ALL_QUEUES not in mine else []
    if others and facts.living:
        found.append(
            note(
                f"jobs are due in {_some(others)}, which these settings leave to other supervisors",
                "if there are none for them, add the queues, or *, to SUPERVISOR_QUEUES",
            )
        )
    return found or [ok(f"{count(facts.living)} supervisors run: {_some(facts.names)}")]


async def leases(look: Look) -> Iterable[Verdict]:
    """Jobs under sessions that are no more. A sweep frees them, wherever a supervisor runs."""
    limits = look.limits
    strays, some = await look.db.stray_leases(late_s=limits.late_s, limit=limits.sample * 10)
    if not strays:
        return [ok("every running job belongs to a living worker")]
    return [
        problem(
            f"{count(strays)} jobs are leased to workers that are gone, for more than {length(limits.late_s)} (ids "
            f"{', '.join(map(str, some))}): no sweep frees them",
            "run a supervisor, whose sweep does it within a minute: `supervisor run`",
        )
    ]


async def kinds(look: Look) -> Iterable[Verdict]:
    """Kinds that wait and that nobody seems to know."""
    found = await look.db.kinds(limit=look.limits.sample)
    known = look.kinds or frozenset()
    put_back = [kind for kind, _, unknown in found if unknown and kind not in known]
    strange = (
        [kind for kind, _, unknown in found if not unknown and kind not in known] if look.kinds is not None else []
    )
    verdicts = []
    if put_back:
        verdicts.append(
            warning(
                f"jobs of kind {_some(put_back)} were put back by workers that have no handler for them",
                "deploy the handlers, or name their module in SUPERVISOR_HANDLERS; after "
                f"{length(look.settings.unknown_kind_limit_s)} such a job is dead",
            )
        )
    if strange:
        verdicts.append(
            warning(
                f"jobs of kind {_some(strange)} wait, and the handlers of these settings "
                f"({', '.join(look.settings.handlers)}) do not have them",
                "name the module that has them in SUPERVISOR_HANDLERS, unless other supervisors run them",
            )
        )
    said = "was put back as unknown" if look.kinds is None else "lacks a handler here"
    return verdicts or [ok(f"no kind that waits {said} (a sample of each lane)")]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
