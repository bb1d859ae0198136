"""What a bench is, and what it gives back."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a bench.

    Attributes:
        line: One line for the README.
        figures: Everything measured, ready for JSON.
    """

    line: str
    figures: dict[str, Any]


class Bench(Protocol):
    """A module that measures one thing."""

    HELP: str

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add its options."""

    def run(self, options: argparse.Namespace, say: Say, /) -> Report:
        """Measure, telling progress line by line."""
