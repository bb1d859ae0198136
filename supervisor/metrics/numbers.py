"""The numbers that the service's processes count themselves.

Each metric is described where it is made: name, help, labels. What its values mean is in its help, since
that is what people see in Prometheus; docs/metrics.md is written from it.
"""

from typing import Final, NamedTuple

from prometheus_client import Counter, Gauge, Histogram

RUN_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
WAIT_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 1800, 7200)
TRIP_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)
LAG_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
BATCH_SIZES: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class Described(NamedTuple):
    """A metric for docs/metrics.md."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()


class Metrics:
    """The service's own metrics. Made by `metrics()`, after `setup`; in other processes they count for no one."""

    def __init__(self) -> None:
        self.described: list[Described] = []

        def counter(name: str, text: str, *labels: str) -> Counter:
            self.described.append(Described(f"supervisor_{name}", "counter", text, labels))
            return Counter(f"supervisor_{name}", text, labels, registry=None)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            self.described.append(Described(f"supervisor_{name}", "gauge", text, labels))
            return Gauge(f"supervisor_{name}", text, labels, registry=None, multiprocess_mode="livesum")

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            self.described.append(Described(f"supervisor_{name}", "histogram", text, labels))
            return Histogram(f"supervisor_{name}", text, labels, registry=None, buckets=buckets)

        self.jobs = counter(
            "jobs_total",
            "Runs that ended, by what became of the job: done; failed (it is tried again); dead; cancelled; snoozed; "
            "crashed (its worker died under it), suspect (so it did, under several) or interrupted (by a drain), "
            "and it is queued again. Counted when the database has stored it. The kind of reaped jobs is other.",
            "queue",
            "kind",
            "outcome",
        )
        self.retries = counter("retries_total", "Runs begun that were not the job's first attempt.", "queue", "kind")
        self.job_run_seconds = histogram(
            "job_run_seconds", "Time in the handler, of runs that ended.", RUN_SECONDS, "queue", "kind"
        )
        self.job_wait_seconds = histogram(
            "job_wait_seconds", "From due to started, by the database's clock.", WAIT_SECONDS, "queue", "kind"
        )
        self.wake_seconds = histogram(
            "wake_seconds", "From a wake-up's arrival at a worker to the start of the first job it found.", TRIP_SECONDS
        )
        self.unknown_kinds = counter("unknown_kinds_total", "Jobs put back since this worker has no such handler.")
        self.claims = counter("claims_total", "Claim statements.")
        self.claim_batch = histogram("claim_batch", "Jobs per claim.", BATCH_SIZES)
        self.claim_seconds = histogram(
            "claim_seconds",
            "Round trip of a claim statement, which may carry results too.",
            TRIP_SECONDS,
        )
        self.ack_batch = histogram("ack_batch", "Results stored per statement.", BATCH_SIZES)
        self.ack_seconds = histogram(
            "ack_seconds", "From the end of a job's run until its result was stored.", TRIP_SECONDS
        )
        self.leases_lost = counter("leases_lost_total", "Results dropped: the lease had passed to another.")
        self.released = counter("released_total", "Jobs given back unstarted and uncharged, by why.", "queue", "reason")
        self.reaped = counter("reaped_total", "Jobs taken from holders that stopped renewing; each is charged a crash.")
        self.crashes = counter(
            "crashes_total", "Workers that died by themselves, by signal name, or exit code of the service.", "signal"
        )
        self.restarts = counter(
            "restarts_total", "Workers started in place of another, by why that one went.", "reason"
        )
        self.workers = gauge("workers", "Workers by state: starting, ready, draining, killed.", "state")
        self.slots = gauge("slots", "Jobs that may run at the same time.")
        self.slots_busy = gauge("slots_busy", "Jobs running now.")
        self.pool_connections = gauge(
            "pool_connections",
            "Connections for handlers' own transactions: open, idle; waiting: callers without.",
            "state",
        )
        self.listening = gauge("listening", "1 while LISTEN works, 0 while jobs are found by polling.")
        self.notices = counter("notices_total", "Notifications heard.")
        self.polls = counter("polls_total", "Looks for due jobs that no notification asked for.")
        self.poll_interval_seconds = gauge(
            "poll_interval_seconds", "Time between two such looks as things are; short where LISTEN does not work."
        )
        self.wakes = counter("wakes_total", "Workers woken, by why.", "reason")
        self.loop_lag_seconds = histogram(
            "loop_lag_seconds", "How late the supervisor's own loop ran what it had planned.", LAG_SECONDS
        )
        self.outbox_events = counter(
            "outbox_events_total",
            "Events of the outbox by what the broker said: published, refused (it is tried again or parked), parked.",
            "outcome",
        )
        self.consumed_events = counter(
            "consumed_events_total",
            "Events consumed from a broker: received (now a job), duplicate (dropped), parked (no job can be made of).",
            "outcome",
        )
        self.consumers = gauge(
            "consumers", "Consumers of events in this service, by whether their broker is up or down.", "broker"
        )
        self.schedule_fired = counter(
            "schedule_fired_total", "Ticks of cron entries fired, by this supervisor.", "kind"
        )
        self.schedule_skipped = counter(
            "schedule_skipped_total",
            "Ticks of cron entries that were missed and not fired, by the entry's policy.",
            "kind",
        )
        self.schedule_late_seconds = histogram(
            "schedule_late_seconds", "From a tick to the job that it adds, by the database's clock.", WAIT_SECONDS
        )
        self.vacuums = counter(
            "vacuums_total",
            "Vacuums that this supervisor has made, by what came of them: done, or in_vain, since something keeps the "
            "dead rows.",
            "outcome",
        )
        self.rebuilds = counter(
            "index_rebuilds_total",
            "Indexes that were rebuilt since they had grown beyond what their rows need, by how that ended: done, "
            "failed, gave_way (somebody waited for a lock that a rebuild excludes). The last two are tried again.",
            "outcome",
        )
        self.errors = counter("errors_total", "Failures of the service itself, by place.", "where")
        self.log_lines_dropped = counter("log_lines_dropped_total", "Log lines lost to a slow reader.")


_metrics: Metrics | None = None


def metrics() -> Metrics:
    """This process's metrics, made on first use."""
    global _metrics
    if _metrics is None:
        _metrics = Metrics()
    return _metrics
