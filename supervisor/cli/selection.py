"""Which jobs a command is for: by ids, or by a filter, as its options say.

Always true: a name, a key, a state or a length that cannot be used is refused before the database is asked; a
command that gives an order has ids or a filter, never both and never neither.

Elsewhere: what a filter finds (db/operate.py, db/browse.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.options import KindFilter, QueueFilter

if TYPE_CHECKING:
    from supervisor.db.operate import Filter

_LONGEST_AGE_S = 100 * 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs of an order; its fields are a command's options."""

    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="The jobs.", show_default=False)] = None
    status: Annotated[list[str] | None, typer.Option("--status", "-s", show_default=False)] = None
    queue: QueueFilter = None
    kind: KindFilter = None
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="LENGTH", help="Only jobs enqueued longer ago: 90, 10m, 6h, 2d.", show_default=False
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Only jobs with this unique, ordering, concurrency or rate key.", show_default=False
        ),
    ] = None

    def filter(self, allowed: tuple[str, ...]) -> Filter | None:
        """The filter of these options for jobs in states *allowed*; None when ids are given instead."""
        from supervisor.cli.failures import wrong_use
        from supervisor.payload import check_key

        asked = bool(self.status) or any(
            given is not None for given in (self.queue, self.kind, self.older_than, self.key)
        )
        if asked == bool(self.ids):
            raise wrong_use(
                "[ID]...", "or a filter of --status, --queue, --kind, --older-than and --key is needed: one of the two"
            )
        if not asked:
            return None
        if self.key is not None:
            check_key("--key", self.key)
        older_s = None if self.older_than is None else read_length("--older-than", self.older_than, _LONGEST_AGE_S)
        return replace(chosen(self.status, allowed, self.queue, self.kind), older_s=older_s, key=self.key)


def choices(allowed: tuple[str, ...]) -> tuple[str, ...]:
    """What --status takes where jobs may be in states *allowed*; `scheduled`: the queued ones that are due later."""
    return (*allowed, "scheduled") if "queued" in allowed else allowed


def chosen(words: list[str] | None, allowed: tuple[str, ...], queue: str | None, kind: str | None) -> Filter:
    """The filter of --status, --queue and --kind."""
    from supervisor.cli.failures import wrong_use
    from supervisor.db.operate import Filter
    from supervisor.payload import check_name

    known = choices(allowed)
    found = [word.strip().lower() for text in words or () for word in text.split(",")]
    for word in found:
        if word not in known:
            raise wrong_use("--status", f"must be of {', '.join(known)}")
    if "scheduled" in found and len(set(found)) > 1:
        raise wrong_use("--status", "scheduled stands alone")
    if queue is not None:
        check_name("--queue", queue)
    if kind is not None:
        check_name("--kind", kind)
    scheduled = True if "scheduled" in found else None
    return Filter(("queued",) if scheduled else tuple(found) or allowed, queue, kind, scheduled)


def read_length(name: str, text: str, most_s: float) -> float:
    """A length of time, in seconds, given to the option *name*."""
    from supervisor.cli.enqueue import read_option, seconds
    from supervisor.cli.failures import wrong_use

    value: float = read_option(name, text, seconds)
    if value > most_s:
        raise wrong_use(name, f"is above {most_s:g} seconds")
    return value
