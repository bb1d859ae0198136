"""Statements for connections of other libraries, without sending them: what to send next, and what to make of it.

    steps = one(...) or many(...)        a generator: yields a Step, is sent its rows, returns the result
    drive(steps, fetch)                  the library's own way to run a statement, sync
    await drive_async(steps, fetch)      or awaited

Written once for every library and for both worlds: an adapter brings a `fetch` and nothing else.

Always true: every parameter is text, a number or null, whatever codecs the caller has installed (text is cast by
the server: json, points in time and ids too). Nothing is sent before the first Step was asked for. An error of
`fetch` goes through the generator: what a database without the schema answers comes out as SchemaMissing.

Elsewhere: the same on psycopg's own connections (enqueue.py, publish.py); the libraries (supervisor/adapters).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from supervisor.db.statements import render
from supervisor.errors import SchemaMissing

T = TypeVar("T")
Row: TypeAlias = "Sequence[Any]"

#: invalid_schema_name, undefined_function, undefined_table
_NO_SCHEMA: Final = frozenset({"3F000", "42883", "42P01"})
_BY_TEXT: Final = re.compile(r"%s::(jsonb|timestamptz|uuid|bigint\[\]|text\[\])")
_MAX_CAUSES: Final = 5


class Step(NamedTuple):
    """One statement to send.

    Attributes:
        text: With a `%s` for each argument, for drivers that take them so.
        args: Texts, numbers and None.
    """

    text: str
    args: tuple[Any, ...] = ()

    @property
    def dollars(self) -> str:
        """The text with `$1`, `$2`, ... instead."""
        return _dollars(self.text)


Steps: TypeAlias = "Generator[Step, list[Row], T]"


def asked(schema: str, text: str, args: tuple[Any, ...]) -> Steps[list[Row]]:
    """Send *text*; all its rows."""
    return (yield from sent(schema, Step(_text(text, schema), args)))


def one(schema: str, text: str, args: tuple[Any, ...], read: Callable[[Row | None], T]) -> Steps[T]:
    """Send *text*, a statement with one row for answer."""
    rows = yield from sent(schema, Step(_text(text, schema), args))
    return read(rows[0] if rows else None)


def many(
    schema: str,
    text: str,
    documents: Sequence[str],
    read: Callable[[Row | None], T],
    judge: Callable[[list[T]], Any],
    *,
    undoable: bool,
    in_transaction: bool,
    last: Callable[[list[T]], tuple[str, tuple[Any, ...]]] | None = None,
) -> Steps[Any]:
    """Send *text* for each of *documents*, all or none; *judge* makes the result of all rows.

    With *undoable*, an exception of *judge* takes back what was sent, and only that. Where no transaction is open
    and one is needed for that, it is one of its own.

    Args:
        last: A statement that comes after them, and its arguments, made of their rows; it has one row.
    """
    guarded = undoable or last is not None or len(documents) > 1
    begin, commit, undo = _SAVEPOINT if in_transaction else _TRANSACTION
    if guarded:
        yield Step(begin)
    try:
        answers: list[T] = []
        for document in documents:
            answers += [read(row) for row in (yield from sent(schema, Step(_text(text, schema), (document,))))]
        if last is not None:
            answers.append((yield from one(schema, *last(answers), read)))
        result = judge(answers)
    except GeneratorExit:
        raise
    except BaseException as error:
        if guarded:
            try:
                for statement in undo:
                    yield Step(statement)
            except Exception as second:  # the first says more; a connection that is gone undoes by itself
                error.add_note(f"taking back the bulk failed too: {type(second).__name__}: {second}")
        raise
    if guarded:
        yield Step(commit)
    return result


_SAVEPOINT: Final = (
    "savepoint supervisor_bulk",
    "release savepoint supervisor_bulk",
    ("rollback to savepoint supervisor_bulk", "release savepoint supervisor_bulk"),
)
_TRANSACTION: Final = ("begin", "commit", ("rollback",))


def drive(steps: Steps[T], fetch: Callable[[Step], list[Row]]) -> T:
    """Run *steps* by *fetch*, which sends one statement and returns its rows."""
    try:
        step = next(steps)
        while True:
            try:
                rows = fetch(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(rows)
    except StopIteration as ended:
        result: T = ended.value
        return result


async def drive_async(steps: Steps[T], fetch: Callable[[Step], Awaitable[list[Row]]]) -> T:
    """As `drive`."""
    try:
        step = next(steps)
        while True:
            try:
                rows = await fetch(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(rows)
    except StopIteration as ended:
        result: T = ended.value
        return result


def sent(schema: str, step: Step) -> Steps[list[Row]]:
    """Send *step* and return its rows; SchemaMissing where *schema* is not migrated."""
    try:
        return (yield step)
    except Exception as error:
        if sqlstate(error) in _NO_SCHEMA:
            raise SchemaMissing(schema) from error
        raise


def sqlstate(error: BaseException) -> str | None:
    """The database's code in *error*, or in what it stands for: libraries wrap their driver's errors."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return None
        for name in ("sqlstate", "pgcode"):
            code = getattr(cause, name, None)
            if isinstance(code, str):
                return code
        wrapped = getattr(cause, "orig", None)
        cause = wrapped if isinstance(wrapped, BaseException) else cause.__cause__
    return None


@cache
def _text(text: str, schema: str) -> str:
    return _BY_TEXT.sub(r"%s::text::\1", render(text.strip(), schema))


@cache
def _dollars(text: str) -> str:
    numbers = iter(range(1, text.count("%s") + 1))
    return re.sub("%s", lambda _: f"${next(numbers)}", text)
