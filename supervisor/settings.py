"""Settings: read once at start, checked whole, never changed.

    command line > SUPERVISOR_X > SUPERVISOR_X_FILE (secrets only) > default

Units are in the names (`_s`: seconds). Every problem is found in one go and told
as a line that names the variable and gives the numbers. Workers get a pickled copy.

Always true: no secret is in a problem, in `repr`, or in `redacted()`; whoever
holds a Settings object has told `dsn.mask` its passwords.

Elsewhere: reading and hiding addresses (dsn.py); docs/settings.md is written by
`python -m supervisor.settings`.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from supervisor import dsn
from supervisor.errors import InvalidJob, SettingsInvalid
from supervisor.payload import check_name

PREFIX: Final = "SUPERVISOR_"
SECRETS: Final = ("database_url", "listen_database_url")
"""Secrets that are addresses."""
WORDS: Final = ("dashboard_token", "dashboard_password")
"""Secrets that are words."""
BROKERS: Final = ("outbox_url", "consume_url")
"""Secrets that are addresses of brokers: checked by their drivers, which know the schemes."""
LEAST_TOKEN: Final = 16
ALL_QUEUES: Final = "*"
#: Jobs that a worker claims beyond those it runs, and how many of such as start at once.
PREFETCH: Final = 10
PREFETCH_SHORT: Final = 400


class QueueWeight(NamedTuple):
    """A queue a worker takes from; of two with due jobs, one with twice the weight is asked first twice as often."""

    name: str
    weight: int


_NUMBER: Final = re.compile(r"[+-]?[0-9]*\.?[0-9]+", re.ASCII)


def parse_queues(text: str) -> tuple[QueueWeight, ...]:
    """`critical*4,default*2,bulk` as names with weights; `*` stands for all queues not named."""
    found: list[QueueWeight] = []
    for part in (part.strip() for part in text.split(",")):
        name, star, digits = part.rpartition("*")
        if not (star and name and _NUMBER.fullmatch(digits)):
            name, digits = part, "1"
        try:
            check_name("queue", name)
        except InvalidJob as refused:
            raise ValueError(f"a queue's name {refused.reason}") from None
        if not (digits.isdigit() and 1 <= int(digits) <= 1000):
            raise ValueError(f"queue {name!r} has weight {digits}; weights are whole numbers, 1 to 1000")
        if any(name == other.name for other in found):
            raise ValueError(f"queue {name!r} is named twice")
        found.append(QueueWeight(name, int(digits)))
    return tuple(found)


def _names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def parse_topics(text: str) -> tuple[tuple[str, str], ...]:
    """`orders.created=order.created,payments.*=payment`: topics as the broker knows them, and their jobs' kinds."""
    found: list[tuple[str, str]] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        topic, equals, kind = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"{topic!r} has no kind: write topic=kind, as in orders.created=order.created")
        try:
            check_name("topic", topic, 255)
            check_name("kind", kind)
        except InvalidJob as refused:
            raise ValueError(f"in {part!r} the {refused.field} {refused.reason}") from None
        if any(topic == other for other, _ in found):
            raise ValueError(f"topic {topic!r} is named twice")
        found.append((topic, kind))
    return tuple(found)


def _port(value: object) -> object:
    word = str(value).strip().lower()
    if word.startswith("tcp://"):
        raise ValueError(
            "was set by Kubernetes for a Service of that name: set enableServiceLinks: false, or rename the Service"
        )
    return None if word in {"", "0", "off", "none"} else 0 if word == "auto" else value


def is_loopback(host: str) -> bool:
    """Whether a server bound to *host* is reached from this machine alone."""
    name = host.strip().strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _runtime_dir() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "supervisor" if base else Path(tempfile.gettempdir()) / f"supervisor-{os.getuid()}"


def usable_cpus() -> int:
    """Processors this process may use: its affinity mask, and the quota of its container, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2 here, or no quota ("max")
        return count


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


class Settings(BaseSettings):
    """All settings of a service. `Settings.load` is the way in."""

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
    handlers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = _setting(
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
    dashboard_allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = _setting(
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
        _runtime_dir,
        "$XDG_RUNTIME_DIR/supervisor, else one in the temporary directory",
    )

    @classmethod
    def load(cls, **flags: Any) -> Self:
        """The settings of this process; *flags* (by field name, None: not given) go before the environment.

        Raises:
            SettingsInvalid: With every problem, one line each.
        """
        given = {"schema_" if key == "schema" else key: value for key, value in flags.items() if value is not None}
        problems = list(_read_secret_files(given))
        try:
            settings = cls(**given)
        except ValidationError as invalid:
            problems += _explain(invalid, given)
        if problems:
            raise SettingsInvalid(problems) from None  # the cause would carry the values
        return settings

    @field_validator(*SECRETS, mode="after")
    @classmethod
    def _check_address(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else SecretStr(dsn.parse(value.get_secret_value()).text)

    @field_validator("schema_", mode="after")
    @classmethod
    def _check_schema(cls, value: str) -> str:
        if value.startswith("pg_") or value == "information_schema":
            raise ValueError(f"{value!r} is a name that PostgreSQL keeps for itself")
        return value

    @field_validator("log_level", "log_format", "outbox_after_parking", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator(*WORDS, mode="after")
    @classmethod
    def _check_word(cls, value: SecretStr | None) -> SecretStr | None:
        word = value.get_secret_value() if value else ""
        if any(ord(c) < 32 or ord(c) == 127 for c in word):
            raise ValueError("contains a control character (a newline inside?)")
        return value

    @field_validator("dashboard_token", mode="after")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value and len(value.get_secret_value()) < LEAST_TOKEN:
            raise ValueError(f"is shorter than {LEAST_TOKEN} characters: make one with `openssl rand -hex 24`")
        return value

    @field_validator("health_port", "dashboard_port", mode="before")
    @classmethod
    def _check_port(cls, value: object) -> object:
        return _port(value)

    @field_validator("name", "consumer", mode="after")
    @classmethod
    def _check_label(cls, value: str) -> str:
        try:
            return check_name("name", value)
        except InvalidJob as refused:
            raise ValueError(refused.reason) from None

    @field_validator("handlers", mode="after")
    @classmethod
    def _check_modules(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for module in value:
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError(f"{module!r} is not a module's name such as handlers or shop.jobs")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.listen_database_url and not self.database_url:
            raise ValueError("listen_database_url is set but database_url is not: the embedded database needs neither")
        if self.lease_s < 3 * self.renew_every_s * (1 - 1e-9):
            raise ValueError(
                f"lease_s={self.lease_s:g} must be at least 3 x renew_every_s={self.renew_every_s:g}: "
                "one late renewal must not cost a running job its lease"
            )
        if self.retry_base_s > self.retry_cap_s:
            raise ValueError(f"retry_base_s={self.retry_base_s:g} must not be above retry_cap_s={self.retry_cap_s:g}")
        if self.restart_backoff_s > self.restart_backoff_cap_s:
            raise ValueError(
                f"restart_backoff_s={self.restart_backoff_s:g} must not be above "
                f"restart_backoff_cap_s={self.restart_backoff_cap_s:g}"
            )
        if bool(self.consume_url) != bool(self.consume):
            raise ValueError("consume_url and consume belong together: set both or neither")
        if bool(self.dashboard_user) != bool(self.dashboard_password):
            raise ValueError("dashboard_user and dashboard_password belong together: set both or neither")
        if self.dashboard_port is not None and (problem := self.open_dashboard()):
            raise ValueError(problem)
        self._remember()
        return self

    @property
    def most_prefetched(self) -> int:
        """The most jobs that a worker holds beyond those it runs."""
        return PREFETCH_SHORT if self.prefetch is None else self.prefetch

    def open_dashboard(self) -> str | None:
        """What is wrong when anybody could open the dashboard; None when nobody else can."""
        if self.dashboard_token or self.dashboard_password or is_loopback(self.dashboard_host):
            return None
        return (
            f"dashboard_host={self.dashboard_host} can be reached from other machines, and nothing guards the "
            "dashboard: set SUPERVISOR_DASHBOARD_TOKEN (`openssl rand -hex 24`), or SUPERVISOR_DASHBOARD_USER and "
            "_PASSWORD, or bind it to 127.0.0.1"
        )

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._remember()

    def _remember(self) -> None:
        for secret in SECRETS:
            if value := getattr(self, secret):
                dsn.remember(dsn.parse(value.get_secret_value()))
        for word in WORDS:
            if value := getattr(self, word):
                dsn.remember(dsn.Address("", secrets=(value.get_secret_value(),)))
        for broker in BROKERS:
            if value := getattr(self, broker):
                dsn.remember(dsn.Address("", secrets=broker_secrets(value.get_secret_value())))

    def redacted(self) -> dict[str, Any]:
        """Every setting by its name, passwords hidden: for logs and screens."""
        shown = self.model_dump(mode="json")
        for secret in SECRETS:
            value = getattr(self, secret)
            shown[secret] = dsn.mask(value.get_secret_value()) if value else None
        for word in WORDS:
            shown[word] = dsn.HIDDEN if getattr(self, word) else None
        for broker in BROKERS:
            value = getattr(self, broker)
            shown[broker] = dsn.mask(value.get_secret_value()) if value else None
        shown["consume"] = ",".join(f"{topic}={kind}" for topic, kind in self.consume)
        shown["queues"] = ",".join(f"{q.name}*{q.weight}" if q.weight != 1 else q.name for q in self.queues)
        return {key.rstrip("_"): value for key, value in shown.items()}


def broker_secrets(text: str) -> tuple[str, ...]:
    """What must never be shown of a broker's address: its password, as it stands and decoded."""
    login, at, _ = text.partition("://")[2].rpartition("@")
    password = login.partition(":")[2]
    return tuple({password, unquote(password)}) if at and password else ()


def variable(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.rstrip("_").upper()


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """A line per variable that looks like a misspelt setting. Others with our prefix are left alone:
    Kubernetes sets SUPERVISOR_PORT and the like for a Service named supervisor."""
    known = {variable(field) for field in Settings.model_fields} | {
        variable(field) + "_FILE" for field in SECRETS + WORDS + BROKERS
    }
    # Where the handlers of the demo count their calls; the server of supervisor.testing.pytest.
    known |= {"SUPERVISOR_LAB_DATABASE_URL", "SUPERVISOR_TEST_DATABASE_URL"}
    strangers = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    return [
        f"{name} is not a setting and has no effect: is {close[0]} meant?"
        for name in strangers
        if (close := difflib.get_close_matches(name, known, n=1, cutoff=0.88))
    ]


def _read_secret_files(given: dict[str, Any]) -> Iterator[str]:
    """Put secrets named by *_FILE into *given*; yields problems."""
    for field in SECRETS + WORDS + BROKERS:
        direct, by_file = variable(field), variable(field) + "_FILE"
        path = given.pop(field + "_file", None) or (os.environ.get(by_file) if field not in given else None)
        if field not in given and direct in os.environ and not os.environ[direct].strip():
            yield f"{direct} is set but empty: unset it or give {'an address' if field not in WORDS else 'a value'}"
        if not path:
            continue
        if field in given or os.environ.get(direct):
            yield f"{direct} and {by_file} are both set: keep one"
            continue
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            yield f"{by_file}={path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
            continue
        if text:
            given[field] = text
        else:
            yield f"{by_file}={path}: the file is empty"


def _explain(invalid: ValidationError, given: Mapping[str, Any]) -> Iterator[str]:
    for error in invalid.errors(include_url=False, include_context=True):
        if error["type"] == "default_factory_not_called":
            continue  # follows from another problem in the list
        place = str(error["loc"][0]) if error["loc"] else ""
        field = place if place in Settings.model_fields else place.removeprefix(PREFIX).lower()
        field = "schema_" if field == "schema" else field
        cause = error.get("ctx", {}).get("error")
        reason = str(cause) if cause is not None else error["msg"][:1].lower() + error["msg"][1:]
        if error["type"] == "extra_forbidden":
            yield f"{place} is not a setting"
        elif not place:
            yield reason
        elif field in SECRETS + WORDS + BROKERS:
            yield f"{variable(field)}: {reason}"
        else:
            shown = dsn.mask(str(given.get(field, os.environ.get(variable(field), ""))))
            yield f"{variable(field)}={shown[:80]}: {reason}"


def document() -> str:
    """docs/settings.md, from the fields above."""
    lines = [
        "# Settings",
        "",
        "Written by `python -m supervisor.settings`; do not edit. Each setting is an environment variable; durations",
        "are in seconds (`_S`). Secrets may also be given as a file that holds them: "
        + ", ".join(f"`{variable(field)}_FILE`" for field in SECRETS + WORDS + BROKERS)
        + ".",
        "A setting that cannot be used stops the start with a line per problem.",
        "",
        "| Variable | Default | Meaning |",
        "|---|---|---|",
    ]
    for field, info in Settings.model_fields.items():
        extra = info.json_schema_extra
        default = info.default
        if isinstance(extra, dict) and extra.get("says"):
            shown = str(extra["says"])
        elif field == "queues":
            shown = "`*`"
        elif isinstance(default, tuple):
            shown = f"`{','.join(default)}`"
        else:
            shown = f"`{default:g}`" if type(default) is float else f"`{str(default).lower()}`"
        lines.append(f"| `{variable(field)}` | {shown} | {info.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
    target.write_text(document(), encoding="utf-8")
    print(f"wrote {target}")
