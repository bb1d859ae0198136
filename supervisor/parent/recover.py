"""What becomes of the jobs a dead worker held.

The scoreboard outlives the worker and says of each job whether it had been started and whether its
handler had returned. From that and from how the worker died follows, for each job:

    entry      worker died by itself         killed by the parent, or interrupted
    returned   as the handler ended          as the handler ended
      with a result: released, untouched     released, untouched    (what it returned has died with the worker)
    started    alone: crashed (charged)      its own deadline passed: failed (charged an attempt)
                                             cancelled by force: cancelled
               several: suspect (each next   any other reason: interrupted (uncharged)
               runs alone, uncharged)
    claimed    released, untouched           released, untouched

A worker whose own code failed is in between: whose doing it was nobody knows. What ran is suspect, and only
a suspect under which a worker, running it alone, fails once more is charged. Uncharged, a handler that
breaks the worker's code would come back for ever.

Always true: at most one job is charged for one death, and none for a death that the parent caused for
another's sake. Nothing is written for a job whose lease has moved on: every write is fenced.

Elsewhere: the pages (wire/board.py); what the events do (functions/060_settle.sql).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor.db.jobs import Settlement
from supervisor.outcome import Outcome
from supervisor.wire.board import Entry, Phase, Snapshot


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended.

    Attributes:
        why: In words, with the exit code or the signal.
        caused: None if it died by itself; else why it was ended or left: deadline, cancel, drain, fence, recycle,
            fault (of the worker's own code, perhaps not of its jobs).
        trace: What the interpreter wrote as it died: where each thread was.
    """

    why: str
    caused: str | None = None
    trace: str = ""


def judge(board: Snapshot, death: Death, *, base_s: float, cap_s: float) -> list[Settlement]:
    """One settlement for each job that the worker held."""
    started = [entry for entry in board.entries if entry.phase is Phase.STARTED]
    return [
        Settlement(entry.job_id, entry.token, _outcome(entry, started, death), base_s, cap_s) for entry in board.entries
    ]


def _outcome(entry: Entry, started: list[Entry], death: Death) -> Outcome:
    if entry.phase is Phase.RETURNED and entry.event == "done" and entry.reason == "result":
        return Outcome("released", reason="result_lost")
    if entry.phase is Phase.RETURNED:
        return Outcome(entry.event, entry.error, entry.delay, entry.reason)
    if entry.phase is not Phase.STARTED:
        return Outcome("released", reason="neighbour_died")
    if entry.cancelled:
        return Outcome("interrupted", f"cancelled: did not stop when told to; {death.why}", reason="cancel")
    if entry.killed:
        return Outcome("failed", f"timeout: did not stop when told to; {death.why}", None, "timeout")
    if death.caused == "fault" and not (entry.suspect and len(started) == 1):
        return Outcome("suspect", f"its worker failed while running it: {death.why}", None, "suspect")
    if death.caused not in (None, "fault"):
        return Outcome("interrupted", f"interrupted ({death.caused}): {death.why}", reason="interrupted")
    if len(started) == 1:
        trace = f"\n{death.trace}" if death.trace else ""
        return Outcome("crashed", f"its worker died while running it: {death.why}{trace}", None, "crash")
    others = ", ".join(str(other.job_id) for other in started if other is not entry)[:200]
    return Outcome("suspect", f"its worker died while running it and jobs {others}: {death.why}", None, "suspect")


def uncounted(
    board: Snapshot, settlements: Sequence[Settlement], became: Mapping[int, str], *, live: bool, begun: int
) -> tuple[list[tuple[Entry, str]], list[Entry]]:
    """Runs that are stored but not in the dead worker's own numbers, each with its outcome; and what was given back.

    A worker counts a batch of runs when the database has answered, takes them off its board, and notes there
    how many it has counted. It may have died anywhere in between:

        settled by us now                      it had not counted them
        returned, not settled, session live    the database had stored them before: the worker was about to
                                               count them, or had begun to

    Args:
        became: What the settlements just made of jobs, by id; one that is missing was stored or lost before.
        live: Whether the worker's session still held its leases.
        begun: How many runs its files have beyond those it noted on its board.
    """
    told = {item.id: item.outcome.event for item in settlements}
    ended: list[tuple[Entry, str]] = []
    stored: list[tuple[Entry, str]] = []
    released: list[Entry] = []
    for entry in board.entries:
        status = became.get(entry.job_id)
        if status is None:
            if live and entry.phase is Phase.RETURNED and entry.started_ns:
                stored.append((entry, entry.event))
        elif status != "queued":
            ended.append((entry, status))
        elif entry.started_ns:
            ended.append((entry, told[entry.job_id]))
        else:
            released.append(entry)
    return ended + stored[max(0, begun) :], released


def culprit(settlements: list[Settlement]) -> int | None:
    """The job that the death is charged to; None if it is nobody's or not yet known."""
    return next((item.id for item in settlements if item.outcome.event == "crashed"), None)
