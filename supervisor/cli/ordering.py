"""What all commands that give many jobs an order have in common: options, dry run, question, ending.

    command line --> an order's own options --> Order
                 --> Selection ---------------> ids or a filter    --dry-run: how many it names, and nothing done
                 --> How                              |
                                                      '-- question, batches --> what the order tells, exit code

Always true: an order is a class with its words, its states and its own options, and nothing else; each of these
commands takes the same others, asks the same way, and fails exactly when a job that was named is left as it was.

Elsewhere: the orders (orders.py); which jobs (selection.py); question and batches (batches.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from supervisor import exits
from supervisor.cli.batches import Order, carry_out, look
from supervisor.cli.failures import say, wrong_use
from supervisor.cli.options import DatabaseUrl, Json, Schema, Yes
from supervisor.cli.selection import Selection, choices

if TYPE_CHECKING:
    from supervisor.db.operate import Filter
    from supervisor.settings import Settings

_NAMED = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class How:
    """How an order is carried out; its fields are a command's options."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many jobs the filter names, and do nothing.")] = (
        False
    )
    yes: Yes = False
    database_url: DatabaseUrl = None
    schema: Schema = None
    as_json: Json = False


def command(order: type[Order]) -> Callable[..., None]:
    """The command that gives *order*: the options of all, and those of its own; its help is the class's docstring."""

    def run(**options: Any) -> None:
        _give(_made(order, options), _made(Selection, options), _made(How, options))

    run.__doc__ = order.__doc__
    vars(run)["__signature__"] = Signature(list(_options(order)))
    return run


def _parameters(part: type) -> Mapping[str, Parameter]:
    return signature(part, eval_str=True).parameters


def _made(part: type[T], options: Mapping[str, Any]) -> T:
    """A part of the command, from those of its options that are this part's."""
    return part(**{name: options[name] for name in _parameters(part) if name in options})


def _options(order: type[Order]) -> Iterator[Parameter]:
    states = choices(order.statuses)
    selecting = dict(_parameters(Selection))
    yield selecting.pop("ids")
    yield from _parameters(order).values()
    status = selecting.pop("status")
    if len(states) > 1:
        again = "; repeatable" if len(order.statuses) > 1 else ""
        said = f"{', '.join(states[:-1])} or {states[-1]}{again}."
        option = typer.Option("--status", "-s", help=said, show_default=False)
        yield status.replace(annotation=Annotated[list[str] | None, option])
    yield from selecting.values()
    yield from _parameters(How).values()


def _give(order: Order, selection: Selection, how: How) -> None:
    from supervisor.cli import output
    from supervisor.cli.service import load

    wanted = selection.filter(order.statuses)
    settings = load(database_url=how.database_url, schema=how.schema)
    if how.dry_run:
        _say_found(order, settings, wanted, as_json=how.as_json)
        return
    missing = carry_out(order, settings, selection.ids, wanted, yes=how.yes)
    if how.as_json:
        output.print_json({**order.document(), "missing": missing})
    else:
        order.tell(output.console())
        if order.left:
            say(f"left alone: {_some(order.left)}: {order.why_left}")
        if missing:
            say(f"{order.unfit}: {_some(missing)}")
    if missing or order.left:
        raise typer.Exit(exits.FAILED)


def _say_found(order: Order, settings: Settings, wanted: Filter | None, *, as_json: bool) -> None:
    """What a filter names, for --dry-run."""
    from supervisor.cli import output

    if wanted is None:
        raise wrong_use("--dry-run", "is for filters, not for ids")
    found = look(order, settings, wanted)
    if as_json:
        output.print_json({"jobs": found.total, "more": found.more, "first": found.first})
    else:
        output.console().print(f"would {order.word} {found.words}", style="yellow")


def _some(ids: list[int]) -> str:
    """The first of *ids*, in words."""
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ("job " if len(ids) == 1 else "jobs ") + ", ".join(map(str, ids[:_NAMED])) + more
