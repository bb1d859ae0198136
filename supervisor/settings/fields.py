"""The settings: a name, its values, a default and a sentence for each; docs/settings.md is made of them.

Always true: units are in the names (`_s`: seconds). A field's own limits stand here; what settings have to do with
each other, and what a type cannot say, is checked in model.py.

Elsewhere: how texts are read (values.py); environment variables and files (environment.py).
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from supervisor.settings.environment import PREFIX
from supervisor.settings.values import (
    ALL_QUEUES,
    QueueWeight,
    parse_queues,
    parse_topics,
    read_names,
    runtime_dir,
    usable_cpus,
)

#: Jobs that a worker claims beyond those it runs, and how many of such as start at once.
PREFETCH: Final = 10
PREFETCH_SHORT: Final = 400

Seconds = Annotated[float, Field(gt=0, le=366 * 86400, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, le=366 * 86400, allow_inf_nan=False)]
Queues = Annotated[
    tuple[QueueWeight, ...], NoDecode, BeforeValidator(lambda v: parse_queues(v) if isinstance(v, str) else v)
]


def _setting(meaning: str, default: Any = ..., *, says: str = "", **rest: Any) -> Any:
    """A field; *says* is the default in words where it is computed."""
    return Field(default, description=meaning, json_schema_extra={"says": says} if says else None, **rest)


def _computed(meaning: str, factory: Any, says: str, **rest: Any) -> Any:
    return Field(default_factory=factory, description=meaning, json_schema_extra={"says": says}, **rest)


class Fields(BaseSettings):
    """All settings of a service, each by itself."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        env_ignore_empty=True,
        hide_input_in_errors=True,
        validate_default=False,
        populate_by_name=True,
    )

    # Database
    database_url: SecretStr | None = _setting(
        "Address of the database: a postgresql:// URL or key=value form. Several hosts may be named.",
        None,
        says="an embedded PostgreSQL",
    )
    listen_database_url: SecretStr | None = _setting(
        "Direct address for LISTEN, where database_url leads through a transaction pooler.", None, says="database_url"
    )
    schema_: str = _setting(
        "Schema of the tables and functions.",
        "supervisor",
        validation_alias="SUPERVISOR_SCHEMA",
        pattern=r"^[a-z_][a-z0-9_]{0,47}$",
    )
    pool_size: int = _setting("Database connections of each worker.", 2, ge=1, le=10)
    connect_timeout_s: Seconds = _setting("Patience for a new connection.", 5.0)
    statement_timeout_s: Seconds = _setting("Patience for one statement of the service.", 15.0)
    wake: bool = _setting(
        "LISTEN for new jobs. Off: jobs are found by polling; off in all services, enqueueing notifies nobody.", True
    )
    poll_every_s: Seconds = _setting("Longest time between two looks for jobs while LISTEN works.", 5.0)
    poll_without_listen_s: Seconds = _setting("The same while LISTEN does not work.", 1.0)

    # Work
    handlers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_names)] = _setting(
        "Modules with handlers, comma separated; each is imported once, by the fork server.", ("handlers",)
    )
    queues: Queues = _setting(
        "Queues to work on with their weights, as in critical*4,default*2,bulk; * is all others.",
        (QueueWeight(ALL_QUEUES, 1),),
    )
    processes: int = _computed("Worker processes.", usable_cpus, "the processors this process may use", ge=1, le=1024)
    concurrency: int = _setting("Jobs one worker runs at the same time.", 10, ge=1, le=1000)
    prefetch: int | None = _setting(
        "Jobs one worker claims beyond those it runs.",
        None,
        says=f"{PREFETCH}, and where jobs are short as many as start within 20 ms, up to {PREFETCH_SHORT}",
        ge=0,
        le=1000,
    )
    max_unacked: int = _setting(
        "Results waiting to be stored at which a worker stops claiming.", 1000, ge=1, le=100_000
    )
    ageing_s: SecondsOrZero = _setting(
        "Jobs that have waited for longer come before all others in every tenth claim, the oldest first; 0: never.",
        300.0,
    )
    kill_after_s: SecondsOrZero = _setting("From a job's timeout to the kill of a worker that still runs it.", 5.0)
    retry_base_s: SecondsOrZero = _setting("Delay before the first retry; doubles with each.", 1.0)
    retry_cap_s: Annotated[float, Field(ge=0, le=30 * 86400, allow_inf_nan=False)] = _setting(
        "Longest delay between two attempts.", 3600.0
    )
    unknown_kind_limit_s: SecondsOrZero = _setting(
        "Age at which a job that no worker has a handler for is dead.", 86400.0
    )

    # Leases
    lease_s: Seconds = _setting("How long a worker's jobs stay its own without renewal.", 30.0)
    renew_every_s: Seconds = _computed(
        "Time between two renewals.", lambda data: data.get("lease_s", 30.0) / 3, "lease_s / 3"
    )
    reap_every_s: Seconds = _setting("Time between two looks for lapsed leases.", 1.0)
    fence: bool = _setting("Stop running jobs before a lease that cannot be renewed passes to others.", True)

    # Processes
    drain_timeout_s: SecondsOrZero = _setting(
        "How long running jobs may go on after SIGTERM. The platform's grace must be longer.", 25.0
    )
    termination_grace_s: Seconds | None = _setting(
        "Time from the platform's stop to its kill, if it is known: a start with too little of it warns.",
        None,
        says="not known",
    )
    restart_backoff_s: SecondsOrZero = _setting(
        "Delay before a worker is restarted once its budget is spent; doubles.", 0.1
    )
    restart_backoff_cap_s: SecondsOrZero = _setting("Longest delay before a restart.", 5.0)
    restart_budget: int = _setting("Crashes per minute and worker that are restarted at once.", 20, ge=0, le=10_000)
    max_jobs: int | None = _setting("A worker is replaced after so many jobs.", None, says="never", ge=1)
    max_rss_mb: int | None = _setting(
        "A worker is replaced when it has grown by so many MiB since its start.", None, says="never", ge=1
    )
    max_age_s: Seconds | None = _setting("A worker is replaced after so long.", None, says="never")

    # Keeping
    keep_history_days: int = _setting(
        "Days that finished jobs are kept in the history; 0 keeps none.", 7, ge=0, le=36500
    )
    keep_dead_days: int = _setting("Days that dead jobs are kept for retry.", 30, ge=1, le=36500)
    keep_payload: bool = _setting("Keep payloads in the history.", False)
    vacuum_rows: int = _setting(
        "Dead rows of a table, and a tenth of its live ones besides, at which a supervisor vacuums it, at most every "
        "ten seconds; 0 leaves that to the server's autovacuum.",
        100_000,
        ge=0,
        le=1_000_000_000,
    )
    rebuild_indexes_mb: int = _setting(
        "Indexes of the queue's tables that are larger, and more than half of it unneeded, are rebuilt, one at a time "
        "while everything runs; 0: never.",
        64,
        ge=0,
        le=1_000_000,
    )

    # Events
    outbox_url: SecretStr | None = _setting(
        "Broker that the outbox's events go to: nats://, amqp:// or kafka://. Set, `supervisor run` has a relay.",
        None,
        says="none",
    )
    outbox_source: str = _setting("The attribute `source` of the events published.", "/pg-supervisor", min_length=1)
    outbox_batch: int = _setting("Events that a relay has on their way to the broker at most.", 500, ge=1, le=10_000)
    outbox_max_attempts: int = _setting("Refusals by the broker after which an event is parked.", 10, ge=1, le=32_767)
    outbox_after_parking: Literal["hold", "pass"] = _setting(
        "Later events of a parked event's key: hold keeps them until it is replayed or dropped, pass lets them go.",
        "hold",
    )
    outbox_lease_s: Seconds = _setting("How long a relay's parts stay its own without renewal.", 5.0)
    publish_timeout_s: Seconds = _setting("Patience for the broker's confirmation of one event.", 10.0)
    consume_url: SecretStr | None = _setting(
        "Broker whose events become jobs. Set together with consume, `supervisor run` consumes.", None, says="none"
    )
    consume: Annotated[
        tuple[tuple[str, str], ...],
        NoDecode,
        BeforeValidator(lambda v: parse_topics(v) if isinstance(v, str) else v),
    ] = _setting(
        "Topics and the kinds of their jobs, as in orders.created=order.created,payments.>=payment.", (), says="none"
    )
    consumer: str = _setting(
        "Name under which events are consumed and remembered: those who share it share the events.", "pg-supervisor"
    )
    keep_sent_days: int = _setting("Days that published events are kept for looking; 0 keeps none.", 1, ge=0, le=36500)
    keep_inbox_days: int = _setting(
        "Days that an event is remembered as handled. Longer than a broker may deliver it again.", 7, ge=1, le=36500
    )

    # Seeing it
    name: str = _computed(
        "Name of this service in logs and views; a label only.", socket.gethostname, "the host's name"
    )
    health_host: str = _setting("Address of /metrics, /livez and /readyz.", "127.0.0.1", min_length=1)
    health_port: Annotated[int, Field(ge=0, le=65535)] | None = _setting(
        "Its port; 0 or off: no such server; auto: a free port, told in the log.", 9090
    )
    dashboard_host: str = _setting(
        "Address of the dashboard. One that others can reach needs a token, or a user and a password.",
        "127.0.0.1",
        min_length=1,
    )
    dashboard_port: Annotated[int, Field(ge=0, le=65535)] | None = _setting(
        "Its port. Set, `supervisor run` serves it beside the workers; auto: a free port, told in the log. "
        "`supervisor dashboard` takes 9180 when it is not set.",
        None,
        says="off",
    )
    dashboard_token: SecretStr | None = _setting(
        "Word that opens the dashboard: asked for by its login page, or sent as Authorization: Bearer.",
        None,
        says="none",
    )
    dashboard_user: str | None = _setting(
        "Name for basic authentication at the dashboard.", None, says="none", min_length=1, pattern=r"^[^:]*$"
    )
    dashboard_password: SecretStr | None = _setting("Password that goes with it.", None, says="none")
    dashboard_read_only: bool = _setting("The dashboard shows and changes nothing.", False)
    dashboard_allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_names)] = _setting(
        "Host names under which a dashboard without authentication is asked for, besides localhost: those of a "
        "proxy in front of it.",
        (),
        says="none",
    )
    dashboard_root_path: str = _setting(
        "Path under which a proxy shows the dashboard, and which it strips, such as /ops/jobs.",
        "",
        says="none",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
    )
    watch_every_s: Seconds = _setting(
        "Time between two looks at the queues' depths for /metrics; tables are looked at six times less often.", 10.0
    )
    log_format: Literal["auto", "console", "json"] = _setting("auto: console on a terminal, else json.", "auto")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("Least level that is logged.", "info")
    traces: str = _setting(
        "OpenTelemetry spans of jobs (extra otel). on: a provider by the variables OTEL_...; module:function: one "
        "that this function sets up in each worker. See docs/traces.md.",
        "off",
        pattern=r"^(off|on|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)$",
    )
    trace_relation: Literal["link", "parent"] = _setting(
        "What the span that enqueued a job is to the spans of its runs.", "link"
    )
    run_dir: Path = _computed(
        "Directory for sockets and metric files of the running service.",
        runtime_dir,
        "$XDG_RUNTIME_DIR/supervisor, else one in the temporary directory",
    )
