"""What the log says of jobs that ended otherwise than well, once the database has stored it.

    job.failed        it is queued again, `retry_in_s` from now
    job.dead          it will not run again; `reason` as in the dead letters
    job.cancelled     an operator's word, and its handler has stopped
    job.interrupted   its worker leaves, or its lease was lost: queued again, uncharged
    job.snoozed       (debug) its handler asked for another time
    job.unknown_kind  no handler here: put back for workers that have one
    job.started, job.done      (debug) so that one job's lines can be read from its start to its end

Always true: a line names the job as the lines of its handler do (`job_id`, `kind`, `queue`, `attempt`). Of one
event and one kind one line a second is written at most; `suppressed` says how many jobs went without, in the
next line or, when none comes, in one of its own: the jobs told of and the suppressed ones add up. A job's own story
does not depend on that: the database keeps its errors (`supervisor jobs story`).
"""

from typing import Final

from supervisor.db.jobs import Settled
from supervisor.log import Repeats, enabled, get_logger
from supervisor.worker.run import Run

_EVERY_S: Final = 1.0
_AGAIN: Final = {
    "failed": ("warning", "job.failed"),
    "interrupted": ("info", "job.interrupted"),
    "snoozed": ("debug", "job.snoozed"),
    "unknown": ("warning", "job.unknown_kind"),
}
_DEAD_OF: Final = {"failed": "attempts", "unknown": "unknown_kind"}
_OVER: Final = {"dead": ("error", "job.dead"), "cancelled": ("info", "job.cancelled")}

log = get_logger("worker")


class Told:
    """Tells how runs ended."""

    def __init__(self) -> None:
        self._repeats = Repeats(_EVERY_S)
        self._levels: dict[str, str] = {}
        self.each: Final = enabled("debug")
        """Whether good ends are told too."""

    def stored(self, run: Run, answer: Settled) -> None:
        """*run* has ended otherwise than done, and *answer* is what has become of the job."""
        outcome = run.outcome
        if outcome is None:
            return
        level, event = _OVER.get(answer.status) or _AGAIN.get(outcome.event) or ("", "")
        if not event or (level == "debug" and not self.each):
            return
        held = 0 if self.each else self._repeats.allow((event, run.job.kind))
        if held is None:
            return
        facts = run.log_fields() | {"max_attempts": run.job.max_attempts}
        if run.started:
            facts["took_s"] = round(run.ended - run.started, 3)
        if outcome.error:
            facts["error"] = outcome.error.partition("\n")[0]
        if answer.status == "dead":
            facts["reason"] = _DEAD_OF.get(outcome.event, outcome.reason)
        elif answer.status == "queued" and answer.due_in_s is not None:
            facts["retry_in_s"] = round(max(0.0, answer.due_in_s), 3)
        if held:
            facts["suppressed"] = held
        self._levels[event] = level
        getattr(log, level)(event, **facts)

    def tell_held_back(self, *, all_: bool = False) -> None:
        """How many jobs went without a line, where no further one has come to say so; *all_* at the end."""
        for key, held in self._repeats.overdue(all_=all_):
            if isinstance(key, tuple):
                event, kind = key
                getattr(log, self._levels[event])(event, kind=kind, suppressed=held)

    def done(self, run: Run) -> None:
        """*run*'s success is stored."""
        if self.each:
            log.debug("job.done", **run.log_fields(), took_s=round(run.ended - run.started, 3))
