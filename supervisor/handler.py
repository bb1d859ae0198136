"""Handlers: functions that run jobs, each under a stable name.

    @handler("email.welcome", queue="email", max_attempts=5, timeout=30)
    async def send_welcome(user_id: int, lang: str = "en") -> None: ...

    await send_welcome.enqueue(conn, user_id=7)
    await send_welcome.at(in_=3600, unique_key="welcome:7").enqueue(conn, user_id=7)

    @handler("report.daily", cron="0 3 * * *", tz="Europe/Paris")
    async def report_daily() -> None: ...

The decorator reads the parameters (signature.py), registers the handler under
its kind and aliases, and gives it the ways to enqueue. Calling a handler calls
the function, so that a unit test needs nothing else.

Always true: a kind or alias names one function in a process; a second one is an
error that names both places. Importing the same module again replaces.

Elsewhere: the statements (client.py, which installs itself here: it is the layer
above and also serves producers without handlers); running jobs (supervisor/worker).
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Unpack,
    cast,
    overload,
)

from supervisor.backoff import Backoff, BackoffFunction
from supervisor.context import Job, JobTransaction, RunServices
from supervisor.cron import Cron, Entry, check_missed
from supervisor.errors import InvalidHandler, InvalidJob, InvalidSchedule
from supervisor.keys import (
    Enqueued,
    OnDead,
    Seconds,
    State,
    check_each,
    check_int,
    check_more,
    check_seconds,
    that_belong,
)
from supervisor.newjob import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_CRASHES,
    DEFAULT_QUEUE,
    MAX_PRIORITY,
    MAX_TIMEOUT_S,
    MAX_TRIES,
    MIN_PRIORITY,
    Alike,
    EnqueueOptions,
    NewJob,
    job_options,
)
from supervisor.payload import EMPTY, JsonText, check_key, check_name, check_text
from supervisor.returns import DEFAULT_MAX_BYTES, MAX_KEPT_S, MOST_BYTES, Returns
from supervisor.signature import read

if TYPE_CHECKING:
    from pydantic import BaseModel

    from supervisor.adapters.protocols import AsyncUserConn, UserConn

__all__ = ["Handler", "Job", "JobTransaction", "RunServices", "handler", "install_enqueuer", "registry"]

P = ParamSpec("P")

_MAX_KILL_AFTER_S: Final = 3600.0
_MAX_ENTRIES: Final = 100
_MAX_ENTRY_BYTES: Final = 16 * 1024  # of payload: it is read with each look at the schedule


class Enqueuer(Protocol):
    """What client.py offers to handlers: send jobs that are already checked."""

    def one(
        self,
        conn: UserConn | AsyncUserConn,
        like: NewJob,
        payload: JsonText,
        on_conflict: str | None,
        schema: str | None,
    ) -> Enqueued | Coroutine[Any, Any, Enqueued]: ...

    def many(
        self, conn: UserConn | AsyncUserConn, jobs: Sequence[NewJob], on_conflict: str | None, schema: str | None
    ) -> list[Enqueued] | Coroutine[Any, Any, list[Enqueued]]: ...


_enqueuer: Enqueuer | None = None
_registry: dict[str, Handler[Any]] = {}


def install_enqueuer(enqueuer: Enqueuer) -> None:
    """Give handlers their `.enqueue`. Called once by client.py."""
    global _enqueuer
    _enqueuer = enqueuer


def registry() -> Mapping[str, Handler[Any]]:
    """Every handler of this process by kind, aliases included; a live view."""
    return MappingProxyType(_registry)


class BoundHandler(Generic[P]):
    """A handler with options chosen for the jobs enqueued through it; made by `at`."""

    def __init__(self, owner: Handler[P], options: EnqueueOptions) -> None:
        self._owner = owner
        self._options = options
        self._like: NewJob | None = None

    def at(self, **options: Unpack[EnqueueOptions]) -> BoundHandler[P]:
        """These options, and *options* over them. What is kept may be used again and again: they are read once."""
        return BoundHandler(self._owner, cast("EnqueueOptions", {**self._options, **options}))

    @overload
    def enqueue(self, conn: UserConn, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...
    @overload
    def enqueue(self, conn: AsyncUserConn, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Enqueued]: ...
    def enqueue(
        self, conn: UserConn | AsyncUserConn, /, *args: P.args, **kwargs: P.kwargs
    ) -> Enqueued | Coroutine[Any, Any, Enqueued]:
        """Add one job with these arguments, in the transaction *conn* is in; await it on an async connection.

        Raises:
            InvalidJob: before any statement; the transaction can go on.
            UniqueConflict: with on_conflict="raise"; the transaction can go on.
        """
        signature = self._owner.signature
        payload = signature.encode(signature.given(args, kwargs))
        if self._like is None:
            self._like = self._job(EMPTY)  # the options are checked once
        return _sender().one(conn, self._like, payload, self._options.get("on_conflict"), self._options.get("schema"))

    @overload
    def enqueue_many(self, conn: UserConn, payloads: Iterable[Mapping[str, object]], /) -> list[Enqueued]: ...
    @overload
    def enqueue_many(
        self, conn: AsyncUserConn, payloads: Iterable[Mapping[str, object]], /
    ) -> Coroutine[Any, Any, list[Enqueued]]: ...
    def enqueue_many(
        self, conn: UserConn | AsyncUserConn, payloads: Iterable[Mapping[str, object]], /
    ) -> list[Enqueued] | Coroutine[Any, Any, list[Enqueued]]:
        """Add one job per mapping of arguments; answers in their order. As `enqueue`, all or none."""
        listed = [payload if type(payload) is dict else _arguments(payload) for payload in payloads]
        texts = self._owner.signature.encode_many(listed) if listed else []
        jobs: Sequence[NewJob] = Alike(self._job(texts[0]), texts) if listed else []
        return _sender().many(conn, jobs, self._options.get("on_conflict"), self._options.get("schema"))

    def new_job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job `enqueue` would send, for a bulk of several kinds."""
        return self.from_payload(self._owner.signature.given(args, kwargs))

    def from_payload(self, payload: Mapping[str, object]) -> NewJob:
        """As `new_job`, from a mapping of arguments."""
        return self._job(self._owner.signature.encode(_arguments(payload)))

    def _job(self, payload: JsonText) -> NewJob:
        """The job with that payload, which is checked."""
        owner = self._owner
        # No timeout: the worker takes the handler's as it is when the job runs.
        options: dict[str, Any] = {
            "queue": owner.queue,
            "priority": owner.priority,
            "max_attempts": owner.max_attempts,
            "max_crashes": owner.max_crashes,
            "unique_key": owner.unique_key,
        }
        chosen = job_options(self._options)
        if owner.more:
            options.update(
                that_belong(owner.more, chosen if owner.unique_key is None else {"unique_key": "", **chosen})
            )
        options.update(chosen)
        return NewJob(owner.kind, payload, **options)


def _arguments(payload: Mapping[str, object]) -> Mapping[str, object]:
    if not isinstance(payload, Mapping):
        raise InvalidJob("payload", f"must be a mapping of arguments, not {type(payload).__name__}")
    return payload


class Handler(BoundHandler[P]):
    """A registered function; made by the `handler` decorator.

    Attributes:
        kind: Its name in stored jobs. Never change it without leaving the old one in *aliases*.
        fn: The function.
        is_async: Whether it is an `async def`; a plain one runs in a thread.
        timeout: Seconds until it is told to stop; None for no limit.
        kill_after: Seconds from there until its process is killed.
        backoff: A Backoff, a function of the attempt, or None for the service's own.
        model: The pydantic model of its payload.
        module: Where it was declared.
        entries: Its cron entries.
        returns: How what it returns is stored; None when it is not.
        more: Its keys and limits that were given, as they are stored.
    """

    def __init__(
        self,
        kind: str,
        fn: Callable[..., Any],
        *,
        queue: str,
        priority: int,
        max_attempts: int,
        max_crashes: int,
        timeout: timedelta | float | None,
        kill_after: timedelta | float,
        backoff: Backoff | BackoffFunction | None,
        aliases: Iterable[str],
        unique_key: str | None,
        more: Mapping[str, Any],
        cron: Sequence[Cron],
        result_for: timedelta | float | None = None,
        max_result_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        super().__init__(self, EnqueueOptions())
        self.fn = fn
        self.module = fn.__module__
        self.is_async = inspect.iscoroutinefunction(fn)
        functools.update_wrapper(self, fn)
        if isinstance(aliases, str):
            raise InvalidHandler(kind, "aliases must be several names, as in aliases=('old.name',), not one text")
        try:
            self.kind = check_name("kind", kind)
            self.aliases = tuple(dict.fromkeys(check_name("aliases", alias) for alias in aliases if alias != kind))
            self.queue = check_name("queue", queue)
            self.priority = check_int("priority", priority, MIN_PRIORITY, MAX_PRIORITY)
            self.max_attempts = check_int("max_attempts", max_attempts, 1, MAX_TRIES)
            self.max_crashes = check_int("max_crashes", max_crashes, 1, MAX_TRIES)
            self.timeout = None if timeout is None else check_seconds("timeout", timeout, MAX_TIMEOUT_S)
            self.kill_after = check_seconds("kill_after", kill_after, _MAX_KILL_AFTER_S, zero=True)
            self.unique_key = None if unique_key is None else check_key("unique_key", unique_key)
            self.more = check_each(more)
            # Keys of its own have all that they need; limits may wait for a key that a job is given.
            own = that_belong(self.more, {"unique_key": unique_key})
            check_more(own, unique_key)
        except InvalidJob as error:
            raise InvalidHandler(str(kind), f"{error.field}: {error.reason}") from None
        if backoff is not None and not isinstance(backoff, Backoff) and not callable(backoff):
            raise InvalidHandler(kind, f"backoff must be a Backoff or a function, not {type(backoff).__name__}")
        self.backoff = backoff
        self.signature = read(kind, fn)
        self.returns = _returns(kind, fn, result_for, max_result_bytes)
        self.entries = self._entries(cron, json.dumps(own))

    def _entries(self, cron: Sequence[Cron], options: str) -> tuple[Entry, ...]:
        """*cron* as stored: names and payloads are checked against this handler."""
        if len(cron) > _MAX_ENTRIES:
            raise InvalidHandler(self.kind, f"cron: has {len(cron)} entries, the limit is {_MAX_ENTRIES}")
        made: dict[str, Entry] = {}
        for one in cron:
            try:
                if one.name is None and len(cron) > 1:
                    raise InvalidSchedule("name", "each of several entries needs one: Cron(..., name=...)")
                name = self.kind if one.name is None else f"{self.kind}:{check_name('name', one.name, 100)}"
                if name in made:
                    raise InvalidSchedule("name", f"two entries are called {one.name!r}")
                payload = self.signature.encode(one.payload or {})
                check_text("payload", payload, max_bytes=_MAX_ENTRY_BYTES)
            except InvalidSchedule as error:
                raise InvalidHandler(self.kind, f"{error.field}: {error.reason}") from None
            except InvalidJob as error:
                raise InvalidHandler(
                    self.kind, f"cron entry {one.expression!r}: {error.field}: {error.reason}"
                ) from None
            made[name] = Entry(
                name, self.kind, one.expression, one.tz, check_missed(one.missed), payload,
                self.queue, self.priority, self.max_attempts, self.max_crashes, self.unique_key, options,
            )  # fmt: skip
        return tuple(made.values())

    @property
    def model(self) -> type[BaseModel]:
        """The pydantic model of the payload: its fields are the parameters without the Job."""
        return self.signature.model

    @property
    def place(self) -> str:
        """Where it was declared, for texts."""
        code = getattr(inspect.unwrap(self.fn), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        return f"{self.module}.{self.fn.__qualname__}{where}"

    def encode(self, /, *args: P.args, **kwargs: P.kwargs) -> JsonText:
        """The payload of a call with these arguments, as JSON text; InvalidJob names what does not fit."""
        return self.signature.encode(self.signature.given(args, kwargs))

    def bind(self, payload_text: str | bytes, job: Job | None = None) -> dict[str, Any]:
        """The keyword arguments to call `fn` with; PayloadInvalid, which quotes no value, when it does not fit."""
        return self.signature.bind(payload_text, job)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself: no queue, no checks."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.kind!r} {self.place}>"


class HandlerDecorator(Protocol):
    """Turns a function into a Handler; a leading Job parameter is not among its arguments."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], Any], /) -> Handler[P]: ...
    @overload
    def __call__(self, fn: Callable[P, Any], /) -> Handler[P]: ...


def handler(
    kind: str,
    *,
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    max_crashes: int = DEFAULT_MAX_CRASHES,
    timeout: timedelta | float | None = None,
    kill_after: timedelta | float = 5.0,
    backoff: Backoff | BackoffFunction | None = None,
    aliases: Iterable[str] = (),
    unique_key: str | None = None,
    unique_for: Seconds | None = None,
    unique_states: Iterable[State] | None = None,
    ordering_key: str | None = None,
    on_dead: OnDead | None = None,
    concurrency_key: str | None = None,
    concurrency_limit: int | None = None,
    rate_key: str | None = None,
    rate_limit: int | None = None,
    rate_period: Seconds | None = None,
    cron: str | Cron | Sequence[Cron] | None = None,
    tz: str | None = None,
    missed: Literal["skip", "once"] | int | None = None,
    payload: Mapping[str, Any] | None = None,
    result_for: timedelta | float | None = None,
    max_result_bytes: int = DEFAULT_MAX_BYTES,
) -> HandlerDecorator:
    """Declare a function, `def` or `async def` with typed parameters, as the handler of *kind*.

    A parameter annotated `Job` receives the run's context. Put it first: type checkers then know
    that callers of `.enqueue` do not give it.

    Args:
        kind: A stable name, stored in each job.
        queue: Where its jobs go unless the enqueue says otherwise.
        priority: -100..100; smaller runs sooner within its queue.
        max_attempts: Failures until a job is dead.
        max_crashes: Deaths of the process under a job until it is dead.
        timeout: Seconds or a timedelta a run may take.
        kill_after: Seconds after the timeout until the process of a handler that does not stop is killed.
        backoff: Wait between attempts: a Backoff, or a function of the attempt (1, 2, ...) that returns
            seconds or a timedelta. None takes the service's setting.
        aliases: Former kinds; stored jobs under them run here too.
        unique_key: A fixed key for all its jobs: at most one is queued or running. Keys that depend on
            arguments are given by `.at(unique_key=...)`.
        unique_for, unique_states, ordering_key, on_dead, concurrency_key, concurrency_limit, rate_key, rate_limit,
            rate_period: As of an enqueue (EnqueueOptions), for all its jobs. Without a key here, what belongs to
            it counts for the jobs that are given one by `.at(concurrency_key=...)`.
        cron: When a job of it is added by itself: an expression of five fields, or six with a second before
            them; a Cron, or several with names. One job per tick, whatever the number of supervisors.
        tz: The time zone of that expression, UTC unless given.
        missed: What becomes of its ticks that nobody fired in time: "skip", "once" (the default), or how
            many of the newest are fired at most, up to 1,000.
        payload: The arguments of its jobs.
        result_for: Keep what it returns for so long (seconds or a timedelta), as JSON by its return annotation:
            `await job.result(conn)` answers it. None keeps nothing.
        max_result_bytes: The most bytes of JSON that a result may have; one that has more makes its job dead.

    Raises:
        InvalidHandler: the function or an option cannot be used, or another function has the kind.
    """
    if callable(kind):
        raise InvalidHandler(getattr(kind, "__name__", "?"), 'give it a name: @handler("some.kind")')
    entries = _cron(kind, cron, {"tz": tz, "missed": missed, "payload": payload})
    more = {
        "unique_for": unique_for,
        "unique_states": unique_states,
        "ordering_key": ordering_key,
        "on_dead": on_dead,
        "concurrency_key": concurrency_key,
        "concurrency_limit": concurrency_limit,
        "rate_key": rate_key,
        "rate_limit": rate_limit,
        "rate_period": rate_period,
    }

    def declare(fn: Callable[..., Any]) -> Handler[Any]:
        if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
            raise InvalidHandler(kind, f"must decorate a function, not {type(fn).__name__}")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise InvalidHandler(kind, "is a generator: calling it would run nothing; use return instead of yield")
        made: Handler[Any] = Handler(
            kind,
            fn,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            max_crashes=max_crashes,
            timeout=timeout,
            kill_after=kill_after,
            backoff=backoff,
            aliases=aliases,
            unique_key=unique_key,
            more=more,
            cron=entries,
            result_for=result_for,
            max_result_bytes=max_result_bytes,
        )
        _register(made)
        return made

    return declare


def _cron(kind: str, cron: object, options: Mapping[str, Any]) -> tuple[Cron, ...]:
    """What was given as cron, with the options beside it."""
    given = {name: value for name, value in options.items() if value is not None}
    if cron is None or not isinstance(cron, str):
        found = (cron,) if isinstance(cron, Cron) else () if cron is None else cron
        if given:
            where = "cron is missing" if cron is None else "give them in each Cron(...)"
            raise InvalidHandler(kind, f"{', '.join(given)}: {where}")
        if not isinstance(found, Sequence) or not all(isinstance(one, Cron) for one in found):
            raise InvalidHandler(kind, "cron: must be an expression, a Cron, or a list of them")
        return tuple(found)
    try:
        return (Cron(cron, **given),)
    except InvalidSchedule as error:
        raise InvalidHandler(kind, f"{error.field}: {error.reason}") from None


def _returns(kind: str, fn: Callable[..., Any], result_for: object, max_bytes: object) -> Returns | None:
    if result_for is None:
        return None
    try:
        kept_s = check_seconds("result_for", result_for, MAX_KEPT_S)
        most = check_int("max_result_bytes", max_bytes, 1, MOST_BYTES)
    except InvalidJob as error:
        raise InvalidHandler(kind, f"{error.field}: {error.reason}") from None
    return Returns(kind, fn, kept_s=kept_s, max_bytes=most)


def _register(new: Handler[Any]) -> None:
    names = (new.kind, *new.aliases)
    entries = {entry.name for entry in new.entries}
    for other in {*_registry.values()}:
        if not _same_function(other, new) and (taken := entries & {entry.name for entry in other.entries}):
            raise InvalidHandler(new.kind, f"cron entry {taken.pop()!r} has the name of one of {other.place}")
    for name in names:
        old = _registry.get(name)
        if old is not None and not _same_function(old, new):
            raise InvalidHandler(name, f"two functions have this kind: {old.place} and {new.place}")
    # The same function again (its module was reloaded): what it no longer answers to goes.
    for name in [name for name, old in _registry.items() if _same_function(old, new)]:
        if _registry[name].kind == new.kind or name in names:
            del _registry[name]
    for name in names:
        _registry[name] = new


def _same_function(old: Handler[Any], new: Handler[Any]) -> bool:
    return (old.module, old.fn.__qualname__) == (new.module, new.fn.__qualname__)


def _sender() -> Enqueuer:
    if _enqueuer is None:
        raise RuntimeError("import supervisor, not only supervisor.handler: the client is not loaded")
    return _enqueuer
