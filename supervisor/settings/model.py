"""The settings of a process, checked whole.

    flags, variables, files --load--> Settings, or every problem at once
                                         '-- pickled --> workers, which hide its passwords too

Always true: no secret is in a problem, in `repr`, or in `redacted()`; whoever holds a Settings object has told
`dsn.mask` its passwords.

Elsewhere: what there is to set (fields.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import SecretStr, ValidationError, field_validator, model_validator

from supervisor import dsn
from supervisor.errors import InvalidJob, SettingsInvalid
from supervisor.payload import check_name
from supervisor.settings.environment import (
    BROKERS,
    SECRETS,
    WORDS,
    broker_secrets,
    explain,
    read_secret_files,
    strangers,
)
from supervisor.settings.fields import PREFETCH_SHORT, Fields
from supervisor.settings.values import is_loopback, read_port

LEAST_TOKEN: Final = 16


class Settings(Fields):
    """All settings of a service. `Settings.load` is the way in."""

    @classmethod
    def load(cls, **flags: Any) -> Self:
        """The settings of this process; *flags* (by field name, None: not given) go before the environment.

        Raises:
            SettingsInvalid: With every problem, one line each.
        """
        given = {"schema_" if key == "schema" else key: value for key, value in flags.items() if value is not None}
        problems = list(read_secret_files(given))
        try:
            settings = cls(**given)
        except ValidationError as invalid:
            problems += explain(invalid, given, cls.model_fields)
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
        return read_port(value)

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


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """A line per variable that looks like a misspelt setting."""
    return strangers(environ, Settings.model_fields)
