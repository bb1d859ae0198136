"""Medians, spread, and how figures are written."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure over several rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarise *values*; at least one, all finite."""
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"no figure in {list(values)!r}")
        return cls(statistics.median(values), min(values), max(values), len(values))

    @property
    def spread(self) -> float:
        """From the lowest to the highest, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def __str__(self) -> str:
        rounds = f"{self.rounds} round{'s' if self.rounds > 1 else ''}"
        return f"{readable(self.median)} ({readable(self.low)}-{readable(self.high)}, {rounds})"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "spread": round(self.spread, 3)}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of *values* that *share* percent of them do not exceed; at least one value."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no figures")
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def readable(value: float) -> str:
    """Three significant digits, thousands marked: 31,200; 482; 4.67; 0.034."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    # Rounding may have gained a digit: 99.96 is 100, not 100.0.
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits)}f}"
