"""Whether an index may be rebuilt, what is in the way, and after which time it may be again.

    before the first     at once
    done                 an hour; where it was due again soon after that, twice as long as before
    came out as large    a day, and so on
    failed               10 min, and so on: whoever was killed in the middle has failed too

Elsewhere: the doing (rebuild.py).
"""

from typing import Final

from supervisor.db.health import Index
from supervisor.db.rebuild import Obstacle, Past, Rights
from supervisor.wording import size

_HOUR_S: Final = 3600.0
_FIRST_WAIT_S: Final = {"failed": 600.0, "done": _HOUR_S, "vain": 24 * _HOUR_S}
_LONGEST_WAIT_S: Final = {"failed": 24 * _HOUR_S, "done": 7 * 24 * _HOUR_S, "vain": 7 * 24 * _HOUR_S}


def hinders(one: Obstacle, old_s: float, unknown: set[str]) -> bool:
    """Whether a rebuild waits for *one*. *unknown*: transactions of unknown age that were there at the first look."""
    if one.kind != "transaction":
        return True
    return one.key in unknown if one.age_s is None else one.age_s >= old_s


def problem(found: Rights, index: Index, schema: str, *, drops: bool) -> tuple[str, str] | None:
    """Why it is not done by this role on this server, and the remedy."""
    if found.standby:
        return "this server is a standby", "let SUPERVISOR_DATABASE_URL lead to the primary"
    if found.corrupting:
        return (
            f"PostgreSQL {found.version // 10000}.{found.version % 10000} can leave rows out of an index that is built "
            "while others write",
            "update the server to 14.4 or later",
        )
    owner = f"grant the tables' owner to {found.role}"
    if drops and not found.may_drop:
        return (
            f"role {found.role} may not drop index {index.name} of table {index.table}, which a rebuild that failed "
            "has left",
            f"drop index concurrently {schema}.{index.name}, or {owner}",
        )
    if not found.may_rebuild:
        maintain = f"grant maintain on {schema}.{index.table} to {found.role}, or " * (found.version >= 17_00_00)
        return f"role {found.role} may not rebuild index {index.name} ({size(index.bytes)})", f"{maintain}{owner}"
    return None


def next_wait(before: Past | None, outcome: str) -> float:
    """Seconds until an index may be tried again.

    Args:
        before: Its last rebuild, if there was one.
        outcome: How this one ended: done, vain (it came out about as large) or failed.

    Twice the wait of before if that was for a failure too; after a success, if it was due again before that wait has
    passed twice.
    """
    first, longest = _FIRST_WAIT_S[outcome], _LONGEST_WAIT_S[outcome]
    if before is None:
        return first
    failed = before.outcome != "done"
    again = failed if outcome == "failed" else not failed and -before.next_s < before.wait_s
    return min(longest, max(first, 2 * before.wait_s)) if again else first
