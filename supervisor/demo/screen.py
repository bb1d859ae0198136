"""What is shown while the demo runs: its steps with a live line each, then the table of figures.

On a terminal the steps are redrawn in place; elsewhere each is a line when it ends.
"""

import time
from types import TracebackType
from typing import Final, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from supervisor.demo.figures import Report

TITLES: Final = (
    "start the service: a parent, 4 workers, batches of 10, lease 400 ms",
    "enqueue 500 jobs of four kinds in one batch",
    "clear them: 10 fail once, 4 always, one takes 900 ms",
    "look at retries, dead letters and the slow job",
    "kill a worker that holds a batch; abandon a session",
    "SIGTERM while slow jobs run",
)
_EVERY_S: Final = 0.08


class Screen:
    """The live view. Step 0 is the start of the service."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._now = -1
        self._began = 0.0
        self._took: dict[int, float] = {}
        self._notes: dict[int, str] = {}
        self._bar: tuple[int, int] | None = None
        self._drawn = 0.0
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.end()
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
            self._live.stop()

    def begin(self, step: int) -> None:
        """Step *step* begins, and the one before has ended."""
        self.end()
        self._now, self._began, self._bar = step, time.monotonic(), None
        self.draw(force=True)

    def end(self) -> None:
        """The current step has ended."""
        if self._now >= 0 and self._now not in self._took:
            self._took[self._now] = time.monotonic() - self._began
            if self._live is None:
                self._console.print(self._line(self._now))

    def note(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """What is happening, and how far it is."""
        self._notes[self._now] = text
        self._bar = None if done is None or total is None else (done, total)
        self.draw()

    def draw(self, *, force: bool = False) -> None:
        """Redraw, not more often than eyes can follow."""
        if self._live is not None and (force or time.monotonic() - self._drawn > _EVERY_S):
            self._drawn = time.monotonic()
            self._live.update(self._view(), refresh=True)

    def _view(self) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        for step in range(len(TITLES)):
            mark: RenderableType = Text("·", style="dim")
            if step in self._took:
                mark = Text("✓", style="green")
            elif step == self._now:
                mark = self._spinner
            rows.add_row(mark, self._line(step))
        parts: list[RenderableType] = [rows]
        if self._bar is not None and self._now not in self._took:
            done, total = self._bar
            parts.append(ProgressBar(total=total, completed=done, width=60))
        return Group(*parts)

    def _line(self, step: int) -> Text:
        number = f"{step}. " if step else "   "
        line = Text(number + TITLES[step], style="" if step <= self._now else "dim")
        if step in self._took:
            line.append(f"  {self._took[step]:.1f} s", style="cyan")
        if note := self._notes.get(step):
            line.append(f"  {note}", style="dim")
        return line


def show_report(console: Console, report: Report) -> None:
    """The table of figures, and the verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", justify="right")
    table.add_column("figure", overflow="fold")
    table.add_column("expected", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    last = 0
    for figure in report.figures:
        table.add_row(
            "" if figure.step == last else str(figure.step),
            figure.label,
            figure.shown_expected,
            Text(figure.shown_measured, style="" if figure.ok else "bold red"),
            Text("✓", style="green") if figure.ok else Text("✗", style="bold red"),
        )
        last = figure.step
    console.print(table)
    if report.failure is not None:
        console.print(Text(report.failure, style="bold red"))
    wrong = sum(not figure.ok for figure in report.figures)
    if report.ok:
        console.print(f"all {len(report.figures)} figures as expected, in {report.seconds:.1f} s", style="bold green")
    else:
        console.print(f"{wrong} of {len(report.figures)} figures off, in {report.seconds:.1f} s", style="bold red")
