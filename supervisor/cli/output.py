"""What commands print: tables for people, one JSON document for programs.

stdout has the answer and nothing else; progress, questions and errors go to stderr.

Always true: a text out of the database is shown as it is, never taken for markup, and its control
characters never reach the terminal.
"""

import itertools
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


def clean(text: object) -> str:
    """*text* on one line without control characters."""
    return "".join(char if char.isprintable() else " " if char in "\r\n\t" else "\ufffd" for char in str(text))


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


def count(number: int, capped: bool = False) -> str:
    """1234567 as 1,234,567; a count that stopped at its limit as 10,000+."""
    return f"{number:,}+" if capped else f"{number:,}"


def length(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, name), (smaller, smaller_name) in itertools.pairwise(units):
        if seconds >= size:
            whole, rest = divmod(round(seconds), size)
            return f"{whole} {name} {rest // smaller} {smaller_name}" if rest // smaller else f"{whole} {name}"
    return f"{seconds:.0f} s"


def ago(at: datetime | None) -> str:
    """How long ago, or how soon."""
    if at is None:
        return "-"
    seconds = (datetime.now(UTC) - at).total_seconds()
    return f"{length(seconds)} ago" if seconds >= 0 else f"in {length(-seconds)}"


def first_line(text: str | None, most: int = 200) -> str | None:
    """The first line of an error's text."""
    if not text:
        return None
    line = clean(text.strip().splitlines()[0] if text.strip() else "")
    return line if len(line) <= most else line[: most - 1] + "…"
