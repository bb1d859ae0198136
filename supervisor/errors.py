"""Everything that can go wrong, one class per cause a caller can act on.

Each error carries its facts as fields and says them in one line: what happened,
with its numbers, and what to do. A text never quotes a payload's values or a
secret, since errors travel to logs, to the database and to screens.

    SupervisorError
      InvalidJob, InvalidEvent, InvalidQueue,
      InvalidSchedule, InvalidHandler   the program's input: nothing was sent, nothing is broken
      UniqueConflict                    the answer of the database to on_conflict="raise"
      UnknownKind, PayloadInvalid       a job this worker cannot run
      InvalidResult                     what a handler returned cannot be stored
      IllegalMove, LeaseLost            a write that must not happen
      JobUnknown, ResultGone, JobFailed,
      JobCancelled, CannotWait          the answers to a wait for a result that there is none of
      DatabaseUnavailable               outside trouble: wait, or look there
      SessionClosed                     a worker that was taken for dead
      SchemaMissing, SchemaTooNew       the database and this release do not fit
      SettingsInvalid, HandlersFailed,
      BrokerRefused                     this process cannot start

Elsewhere: what a handler raises on purpose (outcome.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class SupervisorError(Exception):
    """The base of all errors raised by this package."""


class _Refused(SupervisorError, ValueError):
    """Something was refused before any statement was sent: the caller's transaction is untouched."""

    _what: ClassVar[str]

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self._what} refused: {self.field}: {self.reason}"


class InvalidJob(_Refused):
    """A job was refused before any statement was sent: the caller's transaction is untouched.

    Attributes:
        field: What was refused, as a path: ``queue``, ``payload.items[3].name``.
        reason: Why, in words that do not quote the value.
    """

    _what = "job"


class InvalidEvent(InvalidJob):
    """An event was refused before any statement was sent; fields as of InvalidJob."""

    _what = "event"


class InvalidQueue(_Refused):
    """Settings of a queue were refused before any statement was sent: the caller's transaction is untouched.

    Attributes:
        field: What was refused.
        reason: Why.
    """

    _what = "queue settings"


class InvalidSchedule(_Refused):
    """A cron entry, or an order for one, was refused before any statement was sent.

    Attributes:
        field: What was refused: cron, tz, missed, payload, name, by.
        reason: Why.
    """

    _what = "schedule"


class _KindError(SupervisorError):
    """Something of one kind of jobs is not as it must be."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason


class InvalidHandler(_KindError, ValueError):
    """A function cannot be a handler as it is declared; raised while its module is imported."""

    def __str__(self) -> str:
        return f"handler {self.kind!r} refused: {self.reason}"


class UniqueConflict(SupervisorError):
    """Another job holds the unique key, and the caller asked to be told (``on_conflict="raise"``).

    The transaction it was asked in is not aborted, and this call left no job in it.

    Attributes:
        unique_key: The key that is taken. Of a bulk, the first one.
        job_id: The job that holds it.
        more: How many further jobs of the same bulk met a taken key.
    """

    def __init__(self, unique_key: str, job_id: int, more: int = 0) -> None:
        super().__init__(unique_key, job_id, more)
        self.unique_key = unique_key
        self.job_id = job_id
        self.more = more

    def __str__(self) -> str:
        rest = f"; {self.more} more jobs of this bulk met a taken key" if self.more else ""
        return f"unique key {self.unique_key!r} is held by job {self.job_id}{rest}; nothing was enqueued"


class UnknownKind(SupervisorError):
    """No handler of this worker has the job's kind, under its name or an alias."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"no handler for kind {self.kind!r} in this worker: the job goes back for workers that know it. "
            "If none does, import its module (SUPERVISOR_HANDLERS) or give its new handler aliases=(old name,)"
        )


class PayloadInvalid(_KindError):
    """A stored payload does not fit its handler's parameters. The reason names fields, never values."""

    def __str__(self) -> str:
        return f"payload does not fit the handler of kind {self.kind!r}: {self.reason}"


class InvalidResult(_KindError, ValueError):
    """What a handler with `result_for` returned cannot be stored. Not caught, it makes the job dead at once."""

    def __str__(self) -> str:
        return f"the result of kind {self.kind!r} cannot be stored: {self.reason}"


class JobUnknown(SupervisorError):
    """No job has this id: it never was, its transaction did not commit, or nothing is kept of it any more."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"job {self.job_id} is not known: its transaction was not committed, or it is past "
            "SUPERVISOR_KEEP_HISTORY_DAYS (done) or SUPERVISOR_KEEP_DEAD_DAYS (dead, cancelled)"
        )


class ResultGone(JobUnknown):
    """The job is done, and its result is not kept any more."""

    def __str__(self) -> str:
        return f"job {self.job_id} is done, and its result is past its time: raise the handler's result_for"


class JobFailed(SupervisorError):
    """The job that was waited for is dead: it will not run again unless an operator retries it.

    Attributes:
        job_id: Its id.
        reason: Why: attempts, crashes, payload, cancel (its handler raised Cancel), result, unknown_kind.
        error: The text of its last error, many lines; None if there is none.
        attempts: How often its handler failed.
    """

    def __init__(self, job_id: int, reason: str | None, error: str | None, attempts: int | None) -> None:
        super().__init__(job_id, reason, error, attempts)
        self.job_id = job_id
        self.reason = reason
        self.error = error
        self.attempts = attempts

    def __str__(self) -> str:
        last = (self.error or "").strip().splitlines()
        return f"job {self.job_id} is dead ({self.reason}, attempts: {self.attempts}){f': {last[0]}' if last else ''}"


class JobCancelled(SupervisorError):
    """The job that was waited for was cancelled.

    Attributes:
        job_id: Its id.
        reason: Who or what: operator; parent (one that it was to come after is dead or cancelled).
        error: The text of its last error, if there was one before.
    """

    def __init__(self, job_id: int, reason: str | None, error: str | None) -> None:
        super().__init__(job_id, reason, error)
        self.job_id = job_id
        self.reason = reason
        self.error = error

    def __str__(self) -> str:
        return f"job {self.job_id} was cancelled ({self.reason})"


class CannotWait(SupervisorError, ValueError):
    """A result cannot be waited for like this: it would never come. Nothing was sent.

    Attributes:
        reason: Why, and what to do.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot wait for a result: {self.reason}"


class IllegalMove(SupervisorError):
    """An event met a job in a status that does not know it."""

    def __init__(self, status: str, event: str, allowed: Sequence[str] = ()) -> None:
        super().__init__(status, event, tuple(allowed))
        self.status = status
        self.event = event
        self.allowed = tuple(allowed)

    def __str__(self) -> str:
        known = ", ".join(self.allowed) or "nothing: it has ended"
        return f"no move from status {self.status!r} by event {self.event!r}; it takes {known}"


class LeaseLost(SupervisorError):
    """The run no longer holds its job: its lease passed or it was cancelled. What it did not commit is dropped."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id} is no longer held by this run: its result is dropped, the job may run elsewhere"


class DatabaseUnavailable(SupervisorError):
    """The database did not answer.

    Attributes:
        reason: What the connection said, without secrets.
        seconds: How long was tried; 0 when it failed at once.
        unsure: Whether a statement had been sent: it may or may not have been committed.
    """

    def __init__(self, reason: str, seconds: float = 0.0, *, unsure: bool = False) -> None:
        super().__init__(reason, seconds)
        self.reason = reason
        self.seconds = seconds
        self.unsure = unsure

    def __str__(self) -> str:
        tried = f" for {self.seconds:.3g} s" if self.seconds else ""
        return f"database unavailable{tried}: {self.reason}"


class SessionClosed(SupervisorError):
    """This worker's session was reaped or ended: every lease under it is lost, and it can claim no more."""


class SchemaMissing(SupervisorError):
    """The schema is not there, or lacks what this release calls."""

    def __init__(self, schema: str) -> None:
        super().__init__(schema)
        self.schema = schema

    def __str__(self) -> str:
        return (
            f"schema {self.schema!r} is missing in this database, or older than this release: "
            "run `supervisor migrate`, or point SUPERVISOR_SCHEMA at the right one"
        )


class SchemaTooNew(SupervisorError):
    """The schema was migrated by a newer release.

    Attributes:
        schema: Its name.
        found: The version the database has.
        known: The newest version this release knows.
    """

    def __init__(self, schema: str, found: int, known: int) -> None:
        super().__init__(schema, found, known)
        self.schema = schema
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return (
            f"schema {self.schema!r} has version {self.found}, this release knows up to {self.known}: "
            "run the release that migrated it, or a newer one"
        )


class SettingsInvalid(SupervisorError):
    """The settings cannot be used; every problem is listed, one line each, secrets left out."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(list(problems))
        self.problems = list(problems)

    def __str__(self) -> str:
        return "settings refused: " + "; ".join(self.problems)


class HandlersFailed(SupervisorError):
    """A module of handlers could not be imported.

    Attributes:
        module: The module's name.
        traceback_text: The whole traceback, many lines; not part of the one-line text.
    """

    def __init__(self, module: str, traceback_text: str) -> None:
        super().__init__(module, traceback_text)
        self.module = module
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        lines = self.traceback_text.strip().splitlines()
        cause = lines[-1].strip() if lines else "no traceback"
        return f"handlers module {self.module!r} cannot be imported: {cause}"


class BrokerRefused(SupervisorError):
    """The address of a broker cannot be used: nothing was sent.

    Attributes:
        setting: The variable that holds it.
        reason: Why, and what to do; no part of a password in it.
    """

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(setting, reason)
        self.setting = setting
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.setting} refused: {self.reason}"
