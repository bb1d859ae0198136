"""Figures: what was expected, what was measured, and whether the two fit."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report. `expected` is a value, or {"min", "max"} in seconds."""

    step: int
    key: str
    label: str
    expected: Any
    measured: Any
    ok: bool

    @property
    def shown_expected(self) -> str:
        """For people."""
        if isinstance(self.expected, dict):
            least, most = self.expected["min"], self.expected["max"]
            if least and most is not None:
                return f"{_ms(least)} to {_ms(most)}"
            return f"at most {_ms(most)}" if most is not None else f"at least {_ms(least)}"
        return str(self.expected)

    @property
    def shown_measured(self) -> str:
        """For people."""
        return _ms(self.measured) if isinstance(self.measured, float) else str(self.measured)


@dataclass(slots=True)
class Report:
    """All figures so far."""

    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0
    failure: str | None = None
    """What kept the demo from measuring all of it."""

    @property
    def ok(self) -> bool:
        """Whether every figure is right and all were measured."""
        return self.failure is None and all(figure.ok for figure in self.figures)

    def equal(self, step: int, key: str, label: str, expected: Any, measured: Any) -> None:
        """A figure that must be exactly so."""
        self.figures.append(Figure(step, key, label, expected, measured, expected == measured))

    def at_least(self, step: int, key: str, label: str, least: int, measured: int) -> None:
        """A count that must not be below *least*."""
        self.figures.append(Figure(step, key, label, f"{least} or more", measured, measured >= least))

    def within(
        self, step: int, key: str, label: str, measured: float | None, *, least: float = 0.0, most: float | None = None
    ) -> None:
        """A length of time in seconds, between two bounds."""
        fits = measured is not None and measured >= least and (most is None or measured <= most)
        shown = None if measured is None else round(measured, 4)
        self.figures.append(Figure(step, key, label, {"min": least, "max": most}, shown, fits))

    def document(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "ok": self.ok,
            "seconds": round(self.seconds, 2),
            "failure": self.failure,
            "figures": [
                {
                    "step": figure.step,
                    "key": figure.key,
                    "label": figure.label,
                    "expected": figure.expected,
                    "measured": figure.measured,
                    "ok": figure.ok,
                }
                for figure in self.figures
            ],
        }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
