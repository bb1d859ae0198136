"""What commands print: tables for people, one JSON document for programs.

stdout has the answer and nothing else; progress, questions and errors go to stderr.

Always true: a text out of the database is shown as it is, never taken for markup, and its control
characters never reach the terminal.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from supervisor.wording import ago, clean, count, first_line, length, rate

__all__ = [
    "ago",
    "cell",
    "clean",
    "console",
    "count",
    "first_line",
    "length",
    "print_json",
    "rate",
    "reader_gone",
    "status_cell",
    "table",
]

STYLES = {
    "queued": "cyan",
    "running": "blue",
    "done": "green",
    "dead": "bold red",
    "cancelled": "yellow",
    "ready": "green",
    "draining": "yellow",
    "lost": "bold red",
}
_PIPE_WIDTH = 200


class _Console(Console):
    def on_broken_pipe(self) -> None:
        reader_gone()


def reader_gone() -> NoReturn:
    """End quietly: whoever read stdout has seen enough, as in `supervisor jobs list | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise typer.Exit(0)


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr. Where there is no terminal, lines are wide and hold no codes."""
    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
    return _Console(file=stream, width=wide, highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """The whole answer as one document on one line."""
    try:
        sys.stdout.write(json.dumps(document, ensure_ascii=False, default=_plain) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        reader_gone()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, date) else str(value)


def cell(value: object, style: str = "") -> Text:
    """A table's cell; None is a dash."""
    return Text("-", style="dim") if value is None else Text(clean(value), style=style)


def status_cell(status: str) -> Text:
    """A status or state in its colour."""
    return Text(clean(status), style=STYLES.get(status, ""))


def table(title: str, columns: Sequence[str], *, right: Sequence[str] = (), fold: Sequence[str] = ()) -> Table:
    """An empty table; columns named in *right* are numbers, those in *fold* may take several lines."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in fold,
            overflow="fold" if name in fold else "ellipsis",
        )
    return made
