"""What a bench is, and what it gives back.

Elsewhere: charts are drawn in chart.py; what all figures are compared with in the end stands in suite.py.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Table:
    """Figures in rows, already written."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As a table of Markdown, padded so that it reads as text too."""
        lines = [list(self.columns), *map(list, self.rows)]
        widths = [max(3, *(len(line[at]) for line in lines)) for at in range(len(self.columns))]

        def written(cells: Sequence[str]) -> str:
            padded = (
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            return "| " + " | ".join(padded) + " |"

        rule = [("-" * width if at == 0 else "-" * (width - 1) + ":") for at, width in enumerate(widths)]
        return "\n".join([written(lines[0]), "| " + " | ".join(rule) + " |", *map(written, lines[1:])])


@dataclass(frozen=True, slots=True)
class Chart:
    """Figures to draw.

    Attributes:
        kind: bars: one per series, its only value; lines: values over x, which is spaced evenly.
        unit: Of the values.
        x: What the values stand for; for bars empty.
        spread: Lowest and highest, by series; for bars.
    """

    title: str
    unit: str
    kind: Literal["bars", "lines"]
    series: dict[str, Sequence[float]]
    x: Sequence[str] = ()
    x_title: str = ""
    spread: dict[str, tuple[float, float]] | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure that was promised, and what was measured.

    Attributes:
        key: Its name in bounds.toml, which says what bounds it.
        wanted: In words, with its number.
        measured: In words, with its number.
        reached: Whether it is.
    """

    key: str
    figure: str
    wanted: str
    measured: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a bench.

    Attributes:
        line: One line for the README.
        figures: Everything measured, ready for JSON.
        tables, chart: The same to look at.
        shown: What was promised of it.
    """

    line: str
    figures: dict[str, Any]
    tables: Sequence[Table] = ()
    chart: Chart | None = None
    shown: Sequence[Shown] = ()


def as_dict(name: str, report: Report) -> dict[str, Any]:
    """Everything measured, for JSON."""
    return {"bench": name, **report.figures, "shown": [asdict(one) for one in report.shown]}


class Bench(Protocol):
    """A module that measures one thing."""

    HELP: str

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add its options."""

    def run(self, options: argparse.Namespace, say: Say, /) -> Report:
        """Measure, telling progress line by line."""
