"""How long the platform must wait between asking the service to stop and killing it.

    preStop: `supervisor drain --wait` starts    HOOK_START_S
    running jobs are waited for                  drain_timeout_s
    what did not stop is killed                  KILL_AFTER_DRAIN_S
    what they held is put back                   SETTLE_S
    the last word to the database and the roles  GOODBYE_S
    connections are hung up, log lines written   HANG_UP_S twice, LAST_LINES_S

The hook and SIGTERM share one drain: it begins with the first of them and is not counted twice. Each
length is a limit, not an expectation: without a job to wait for, a stop takes a fraction of a second.

Always true: the service stops by these numbers, so `needed_s` is what it may take, and not an estimate.

Elsewhere: the stop itself (parent/service.py, parent/fleet.py, cli/service.py); the graces that are shipped
(compose.yaml, deploy/kubernetes), which tests/deploy compares with this.
"""

from typing import Final

HOOK_START_S: Final = 5.0
"""From the start of the hook's command to its signal: an interpreter on a throttled processor."""
KILL_AFTER_DRAIN_S: Final = 1.5
"""From the drain deadline, when handlers are cancelled, to the kill of workers that are still there."""
SETTLE_S: Final = 5.0
"""Patience for the database to take back what ended workers held; their leases pass if it does not."""
GOODBYE_S: Final = 3.0
"""For what is nice to have done: the supervisor's row taken away, the last counts, the dashboard's own stop."""
HANG_UP_S: Final = 1.0
"""For connections to close; and once more for statements that were still waiting to be given up."""
LAST_LINES_S: Final = 2.0
"""For whoever reads the log to take its last lines."""
END_S: Final = GOODBYE_S + 2 * HANG_UP_S + LAST_LINES_S


def needed_s(drain_timeout_s: float) -> float:
    """The least grace, in seconds, with which a drain of *drain_timeout_s* never ends in a kill."""
    return HOOK_START_S + drain_timeout_s + KILL_AFTER_DRAIN_S + SETTLE_S + END_S


def shortage(drain_timeout_s: float, grace_s: float | None) -> str | None:
    """What is wrong with *grace_s*, with its numbers and the remedy; None if it is enough, or not known."""
    if grace_s is None or grace_s >= needed_s(drain_timeout_s):
        return None
    room = grace_s - needed_s(0)
    lower = f", or SUPERVISOR_DRAIN_TIMEOUT_S to {room:g}" if room >= 0 else ""
    return (
        f"the platform kills after {grace_s:g} s, but a drain of {drain_timeout_s:g} s may take "
        f"{needed_s(drain_timeout_s):g} s with its hook and the putting back: running jobs may be cut off and wait "
        f"for their lease. Set terminationGracePeriodSeconds (or stop_grace_period) and "
        f"SUPERVISOR_TERMINATION_GRACE_S to {needed_s(drain_timeout_s):g}{lower}"
    )
