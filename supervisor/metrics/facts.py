"""What the parent knows of the service, the queue and the database, as gauges of its memory.

    put   the timer, when it has read new figures: a group of them, and how long they are good for
    ask   once, at start: figures that are made when the page is, ages above all
    collect   the page's thread

A figure that is older than it is good for is left off the page: a gap is true, a stale value is not. What
is left then is the age of the last refresh.

With several supervisors on one database each shows the same figures of that database: take `max by (...)`
of them in queries, never a sum.

Always true: reading asks no database. Groups are replaced as a whole, so a page shows none half.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from supervisor.metrics.numbers import Described

Values = Mapping[str, Mapping[tuple[str, ...], float]]
"""By metric, without its prefix: a value for each combination of labels."""

_OF_SERVICE: Final = (
    ("build_info", "1; which release runs.", ("version",)),
    ("ready", "1 while /readyz says that jobs can be run."),
    ("degraded", "1 while this does not work as it should; the reasons are those of /readyz.", ("reason",)),
    ("database_up", "1 while the service's statements reach the database."),
    ("lease_renewal_age_seconds", "Since the workers' leases were last renewed."),
    (
        "refresh_age_seconds",
        "Since the figures of the queues, of the tables, or in a relay's own page of the outbox, were last read.",
        ("figures",),
    ),
)
_OF_DATABASE: Final = (
    (
        "queue_jobs",
        "Jobs by queue and status: due (to be run now), scheduled (later), waiting (at a gate), running, dead. Counted "
        "up to supervisor_queue_jobs_limit per priority and status; a value at the limit means so many or more. "
        "Queues that neither handlers nor settings name are added up as other.",
        ("queue", "status"),
    ),
    (
        "queue_oldest_seconds",
        "For how long the first due job has waited, and the first running one has run; 0 without any.",
        ("queue", "status"),
    ),
    ("queue_paused", "1 while the queue is paused: nothing is claimed from it.", ("queue",)),
    ("queue_paused_seconds", "For how long the queue has been paused; 0 while it is not.", ("queue",)),
    (
        "queue_running_limit",
        "The most jobs of a queue that run in the whole cluster; none without a limit.",
        ("queue",),
    ),
    (
        "queue_rate_limit",
        "The most jobs of a queue that start in a second, over its period; none without a rate.",
        ("queue",),
    ),
    (
        "queue_held_jobs",
        "Due jobs of a queue that has settings which at this moment let none of them start, by which: paused, "
        "max_running (as many run as may, or what runs is not counted yet), rate (the next start is not yet due).",
        ("queue", "reason"),
    ),
    (
        "gate_jobs",
        "Jobs that wait at a gate: parents (jobs that they come after), order (their turn in an ordering key), "
        "concurrency (room in a concurrency key), rate (their time in a rate key). The first 10,000 of each are "
        "counted; left off the page while counting takes longer than a second.",
        ("gate",),
    ),
    (
        "gate_oldest_seconds",
        "For how long the first of these jobs has been due: it would have run then, but for its gate. 0 without one.",
        ("gate",),
    ),
    (
        "gate_late_seconds",
        "For how long a supervisor should have looked at a gate, to let in whoever may go. 0: none is overdue.",
    ),
    (
        "schedules_late",
        "Cron entries that should have been fired for more than a minute.",
    ),
    (
        "schedules",
        "Cron entries by state: open, paused, broken (it cannot be said when they are due), retired.",
        ("state",),
    ),
    ("schedule_overdue_seconds", "For how long the cron entry that is latest should have been fired; 0 without any."),
    (
        "outbox_pending",
        "Events of the outbox that are not published yet; counted up to 2,000 in each of its 64 parts.",
    ),
    ("outbox_oldest_seconds", "Age of the first event that is not published yet: the relay's lag. 0 without any."),
    ("outbox_retrying", "Of the pending events those that a broker has refused at least once."),
    ("outbox_parked", "Events that a broker has refused too often; each holds back its key, where that is so set."),
    ("outbox_unled_parts", "Parts of the outbox that no living relay leads: what is in them is not published."),
    ("outbox_relays", "Living relays, by whether their broker is up or down.", ("broker",)),
    ("inbox_parked", "Events from a broker that no job could be made of."),
    ("queue_jobs_limit", "Where counting jobs stops, per queue, priority and status."),
    ("queue_lanes", "Pairs of queue and priority in use, suspects' own included."),
    ("table_rows", "Rows of a table, as the server's statistics estimate; history: all days together.", ("table",)),
    ("table_dead_rows", "Dead rows that vacuum has not removed yet, as the statistics estimate.", ("table",)),
    ("table_bytes", "Size of a table with its indexes.", ("table",)),
    ("table_bloat_bytes", "Of a table without indexes, beyond what its rows need: an estimate.", ("table",)),
    ("table_vacuum_age_seconds", "Since a table was last vacuumed; none if it never was.", ("table",)),
    ("index_bytes", "Size of an index.", ("index",)),
    ("index_bloat_bytes", "Of an index, beyond what its entries need: an estimate.", ("index",)),
    (
        "oldest_snapshot_seconds",
        "Age of the oldest transaction that keeps dead rows from being vacuumed, by what it is: supervisor (of this "
        "service), session, standby, prepared. 0 without one. Who it is: supervisor doctor, and the log.",
        ("owner",),
    ),
    (
        "oldest_snapshot_transactions",
        "The same in transactions begun since: known for replication slots too, and whatever the role may see.",
        ("owner",),
    ),
    ("replication_slots", "Replication slots of the server, by whether somebody reads them.", ("state",)),
    ("replication_slot_bytes", "Write-ahead log kept for the replication slot that keeps most."),
    ("notification_queue_ratio", "Share of the server's notification queue in use; at 1 commits that notify fail."),
    ("database_connections", "Connections of the server in use."),
    ("database_connections_limit", "The most that it takes."),
)
FACTS: Final[Mapping[str, Described]] = {
    name: Described(f"supervisor_{name}", "gauge", text, rest[0] if rest else ())
    for name, text, *rest in (*_OF_SERVICE, *_OF_DATABASE)
}


class Facts(Collector):
    """The gauges; any thread may collect, the parent's loop writes."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._groups: Mapping[str, tuple[float, Values]] = {}
        self._asked: list[Callable[[], Values]] = []

    def put(self, group: str, values: Values, *, good_for_s: float) -> None:
        """Show *values* in place of what *group* had, for so many seconds at most."""
        self._groups = {**self._groups, group: (self._now() + good_for_s, values)}

    def ask(self, figures: Callable[[], Values]) -> None:
        """Call *figures* whenever the page is made: it must be quick, and safe in another thread."""
        self._asked.append(figures)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._now()
        fresh = [values for until, values in self._groups.values() if now < until]
        for values in (*(figures() for figures in self._asked), *fresh):
            for name, rows in values.items():
                told = FACTS[name]
                family = GaugeMetricFamily(told.name, told.help, labels=told.labels)
                for labels, value in rows.items():
                    family.add_metric(labels, value)
                if family.samples:
                    yield family
