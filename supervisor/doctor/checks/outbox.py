"""Checks of the outbox: whether somebody publishes it, and what it could not publish."""

from collections.abc import Iterable

from supervisor.doctor.look import Look
from supervisor.doctor.report import Verdict, ok, problem, warning
from supervisor.wording import count, length


async def outbox(look: Look) -> Iterable[Verdict]:
    """Lag, parts that nobody leads, brokers that are away, parked events of both directions."""
    state, limits = await look.db.outbox(), look.limits
    found = []
    late = state.oldest_s or 0.0
    if state.pending and not state.relays:
        found.append(
            problem(
                f"{count(state.pending)} events are to be published, the first for {length(late)}, and no relay runs",
                "set SUPERVISOR_OUTBOX_URL for a service, or start one: `supervisor relay`",
            )
        )
    elif state.down:
        found.append(
            problem(
                f"{count(state.down)} of {count(state.relays)} relays do not reach their broker; "
                f"{count(state.pending)} events wait",
                "see what they say: `supervisor outbox status`",
            )
        )
    elif state.unled and state.pending:
        found.append(
            warning(
                f"{state.unled} of the outbox's 64 parts are led by no relay at this moment",
                "look again in some seconds; if it stays so, see the relays' logs and `supervisor outbox status`",
            )
        )
    elif late > limits.waited_s and not state.parked:
        found.append(
            warning(
                f"the first of {count(state.pending)} events to be published has waited for {length(late)}",
                "see whether the relay keeps up, and what it says: `supervisor outbox status`",
            )
        )
    if state.parked:
        found.append(
            problem(
                f"{count(state.parked)} events were refused by the broker and are parked, the first for "
                f"{length(state.parked_oldest_s)}; later events of their keys wait, where that is so set",
                "see why: `supervisor outbox list`; then `supervisor outbox replay --all`, or drop them",
            )
        )
    if state.inbox_parked:
        found.append(
            warning(
                f"{count(state.inbox_parked)} events from a broker could not be made jobs of",
                f"see why: `select topic, event_id, reason from {look.settings.schema_}.inbox_parked`",
            )
        )
    if not found:
        how = "no relay runs" if not state.relays else f"{count(state.relays)} relays run"
        found.append(ok(f"{count(state.pending)} events are to be published, none is parked; {how}"))
    return found
