"""What an operator can order: jobs' retry, cancel, another time, letting a key go; queues' pause and limit; cron
entries' pause and run; parked events' replay and drop.

    form --check--> db/operate.py --> back to the page, with what became of it in the address, as numbers

Elsewhere: whether a form is ours (csrf.py); what an order does to a job (db/functions/080_operate.sql).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from starlette.datastructures import QueryParams

from supervisor.dashboard.problems import Refused
from supervisor.dashboard.viewer import Viewer
from supervisor.db import events, operate, queues, schedules
from supervisor.db.desk import Conn
from supervisor.errors import InvalidQueue, InvalidSchedule
from supervisor.log import get_logger
from supervisor.queues import check_settings, read_rate
from supervisor.schedules import check_order

ORDERS: Final = ("retry", "cancel", "force", "reschedule", "release")
FORCE_S: Final = 5.0
"""How long a handler may take to stop before its worker is killed, where a job is cancelled by force."""
QUEUE_ORDERS: Final = ("pause", "resume", "limit", "unlimit", "rate", "unrate")
SCHEDULE_ORDERS: Final = {"pause": "pause_schedule", "resume": "resume_schedule", "run": "run_schedule"}
_SCHEDULE_SAID: Final = {
    "pause_schedule": "The entry is paused: it adds no jobs.",
    "resume_schedule": "The entry runs again, from its next time on.",
    "run_schedule": "A job of the entry was added.",
}
EVENT_ORDERS: Final = {"replay": events.replay, "drop": events.drop}
_EVENTS_SAID: Final = {
    "replay": "back in the outbox, at their old places; what their keys held back follows.",
    "drop": "dropped: they are never published; what their keys held back goes on.",
}
_MOST_IDS: Final = 200
_LONGEST_DELAY_S: Final = 10 * 366 * 86400.0
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

log = get_logger("dashboard")


@dataclass(frozen=True, slots=True)
class Done:
    """What became of the jobs of one order; `taken`: left alone, a living job has their unique key."""

    order: str
    done: int = 0
    asked: int = 0
    taken: int = 0
    missing: int = 0

    def query(self) -> dict[str, int | str]:
        """For the address of the page that is shown next."""
        numbers = {"done": self.done, "asked": self.asked, "taken": self.taken, "missing": self.missing}
        return {"said": self.order, **{name: number for name, number in numbers.items() if number}}

    @classmethod
    def read(cls, params: QueryParams) -> "Done | None":
        """What `query` has written, or None."""
        if params.get("said") not in (*ORDERS, *QUEUE_ORDERS, *_SCHEDULE_SAID, *EVENT_ORDERS):
            return None
        return cls(params["said"], *(_small(params.get(name)) for name in ("done", "asked", "taken", "missing")))

    @property
    def good(self) -> bool:
        """Whether all of it was done."""
        return not (self.taken or self.missing)

    def text(self) -> str:
        """In words."""
        if self.order in _SCHEDULE_SAID:
            return (
                "A job with its unique key is there: nothing was added." if self.taken else _SCHEDULE_SAID[self.order]
            )
        if self.order in EVENT_ORDERS:
            said = [f"{self.done:,} of the chosen events are {_EVENTS_SAID[self.order]}"] if self.done else []
            if self.missing:
                said.append(f"{self.missing:,} left alone: not parked any more.")
            return " ".join(said)
        if self.order in QUEUE_ORDERS:
            told = {
                "pause": "The queue is paused: what runs goes on.",
                "resume": "The queue gives jobs again.",
                "limit": "The limit is set; it holds as soon as a supervisor has counted what runs.",
                "unlimit": "However many of its jobs may run at one time.",
                "rate": "The rate is set; it holds from now on.",
                "unrate": "The queue has no rate.",
            }
            return told[self.order]
        words = {
            "retry": "put back into the queue",
            "cancel": "cancelled",
            "force": "cancelled",
            "reschedule": "given another time",
            "release": "no longer holding the ordering key: the next one goes",
        }
        parts = []
        if self.done:
            parts.append(f"{_jobs(self.done)} {words[self.order]}.")
        if self.asked:
            limit = f" within {FORCE_S:g} s" if self.order == "force" else ""
            parts.append(f"{_jobs(self.asked)} running and told to stop{limit}.")
        if self.taken:
            parts.append(
                f"{_jobs(self.taken)} left alone: a living job has the same unique key; cancel that one first."
            )
        if self.missing:
            need = {"retry": "neither dead nor cancelled", "cancel": "neither queued nor running"}
            need |= {"force": need["cancel"], "release": "not holding an ordering key"}
            parts.append(f"{_jobs(self.missing)} left alone: {need.get(self.order, 'not queued')} any more.")
        return " ".join(parts) or "Nothing was to be done."


async def carry_out(viewer: Viewer, order: str, ids: Sequence[int], fields: Mapping[str, str]) -> Done:
    """Carry out *order* on the jobs of *ids*. Raises Refused for what cannot be ordered."""
    desk = viewer.desk
    if order == "retry":
        back, taken = await desk.order(operate.retry, ids)
        done = Done(order, done=len(back), taken=len(taken), missing=len(ids) - len(back) - len(taken))
    elif order in ("cancel", "force"):
        answers = await desk.order(operate.cancel, ids, kill_s=FORCE_S if order == "force" else None)
        asked = sum(word == "asked" for word in answers.values())
        done = Done(order, done=len(answers) - asked, asked=asked, missing=len(ids) - len(answers))
    elif order == "reschedule":
        moved = await desk.order(operate.reschedule, ids, **when(fields))
        done = Done(order, done=len(moved), missing=len(ids) - len(moved))
    elif order == "release":
        freed = await desk.order(operate.release_order, ids)
        done = Done(order, done=len(freed), missing=len(ids) - len(freed))
    else:
        raise Refused(400, f"The order must be one of {', '.join(ORDERS)}.")
    viewer.forget()
    log.info("dashboard.order", order=order, job_ids=list(ids)[:20], done=done.done, asked=done.asked)
    return done


async def carry_out_on_queue(viewer: Viewer, fields: Mapping[str, str], who: str) -> Done:
    """Carry out what a form of the queues page says. Raises Refused for what cannot be ordered."""
    order, queue = fields.get("order", ""), fields.get("queue", "")
    if not queue or "\0" in queue:
        raise Refused(400, "No queue was chosen.")
    if order == "pause":
        await viewer.desk.order(_send, "pause_queue", {"queue": queue, "by": who})
    elif order == "resume":
        await viewer.desk.order(_send, "resume_queue", {"queue": queue})
    elif order == "unlimit":
        await viewer.desk.order(_send, "unset_queue", {"queue": queue, "what": "max_running"})
    elif order == "unrate":
        await viewer.desk.order(_send, "unset_queue", {"queue": queue, "what": "rate"})
    elif order == "rate":
        try:
            limit, period_s = read_rate(fields.get("rate", ""))
            check_settings(queue, rate_limit=limit, rate_period=period_s)
        except InvalidQueue as error:
            raise Refused(400, f"{error.field}: {error.reason}".capitalize() + ".") from None
        await viewer.desk.order(
            _send, "set_queue", {"queue": queue, "max_running": None, "rate_limit": limit, "rate_period_s": period_s}
        )
    elif order == "limit":
        most = fields.get("max_running", "").strip()
        if not (most.isascii() and most.isdigit() and len(most) <= 5):
            raise Refused(400, "How many may run at most is a number.")
        await viewer.desk.order(
            _send, "set_queue", {"queue": queue, "max_running": int(most), "rate_limit": None, "rate_period_s": None}
        )
    else:
        raise Refused(400, f"The order must be one of {', '.join(QUEUE_ORDERS)}.")
    viewer.forget()
    log.info("dashboard.queue_order", order=order, queue=queue)
    return Done(order)


async def carry_out_on_schedule(viewer: Viewer, fields: Mapping[str, str], who: str) -> Done:
    """Carry out what a form of the schedules page says. Raises Refused for what cannot be ordered."""
    order, name = SCHEDULE_ORDERS.get(fields.get("order", "")), fields.get("name", "")
    if order is None:
        raise Refused(400, f"The order must be one of {', '.join(SCHEDULE_ORDERS)}.")
    try:
        check_order(name)
        answer = await viewer.desk.order(_send_schedule, order, {"name": name, "by": who})
    except InvalidSchedule as error:
        raise Refused(409, f"{error.field}: {error.reason}".capitalize() + ".") from None
    viewer.forget()
    log.info("dashboard.schedule_order", order=order, name=name)
    return Done(order, taken=int(order == "run_schedule" and not answer[1]))


async def carry_out_on_events(viewer: Viewer, order: str, ids: Sequence[int]) -> Done:
    """Carry out *order* on the parked events of *ids*. Raises Refused for what cannot be ordered."""
    action = EVENT_ORDERS.get(order)
    if action is None:
        raise Refused(400, f"The order must be one of {', '.join(EVENT_ORDERS)}.")
    touched = await viewer.desk.order(action, ids)
    viewer.forget()
    log.info("dashboard.event_order", order=order, event_ids=list(ids)[:20], done=len(touched))
    return Done(order, done=len(touched), missing=len(ids) - len(touched))


def _send_schedule(conn: Conn, schema: str, name: str, parameters: dict[str, object]) -> tuple[Any, ...]:
    return schedules.order(conn, name, schema, parameters)


def _send(conn: Conn, schema: str, name: str, parameters: dict[str, object]) -> Any:
    return queues.order(conn, name, schema, parameters)


def chosen_ids(texts: Sequence[str], what: str = "job") -> list[int]:
    """The ids a form names, each once."""
    if not texts:
        raise Refused(400, f"No {what} was chosen.")
    if len(texts) > _MOST_IDS:
        raise Refused(400, f"{len(texts)} {what}s are more than one order takes ({_MOST_IDS}).")
    if not all(text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63 for text in texts):
        raise Refused(400, f"The id of a {what} is a number.")
    return sorted({int(text) for text in texts})


def when(fields: Mapping[str, str]) -> dict[str, Any]:
    """The time a form gives: `at` (ISO, UTC unless it says otherwise), or `in` with `unit` (s, min, h, d); now."""
    at, delay = fields.get("at", "").strip(), fields.get("in", "").strip()
    if at and delay:
        raise Refused(400, "Give a point in time or a delay, not both.")
    if at:
        try:
            point = datetime.fromisoformat(at)
        except ValueError:
            raise Refused(400, "The time must be like 2030-01-31T12:00, in UTC.") from None
        if not 1970 <= point.year <= 9998:
            raise Refused(400, "The time must lie between 1970 and 9998.")
        return {"at": point if point.tzinfo else point.replace(tzinfo=UTC)}
    if delay:
        try:
            seconds = float(delay) * _UNITS[fields.get("unit", "s")]
        except (ValueError, KeyError):
            raise Refused(400, "The delay must be a number, its unit one of s, min, h, d.") from None
        if not 0 <= seconds <= _LONGEST_DELAY_S:
            raise Refused(400, "The delay must be between 0 and ten years.")
        return {"delay_s": seconds}
    return {}


def _jobs(number: int) -> str:
    return f"{number:,} job" if number == 1 else f"{number:,} jobs"


def _small(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0
