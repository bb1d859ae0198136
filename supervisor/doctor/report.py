"""Findings: what a check has to say, how bad it is, what to do.

Always true: a remedy's commands stand in backquotes, each complete and fit to be run as it stands: SQL to be
run by the owner of the schema or a superuser, or a command of `supervisor`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple


class Level(StrEnum):
    """How bad a finding is.

    ok: as it should be. note: worth knowing, nothing is wrong. warning: works now, and costs time or safety.
    problem: jobs are not run, or can be lost.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"

    @property
    def rank(self) -> int:
        """Its place, the worst highest."""
        return _RANKS[self]


_RANKS: Final[Mapping[Level, int]] = {level: rank for rank, level in enumerate(Level)}


class Verdict(NamedTuple):
    """What a check says; the check's name is added by whoever runs it."""

    level: Level
    what: str
    remedy: str = ""


def ok(what: str) -> Verdict:
    """As it should be."""
    return Verdict(Level.OK, what)


def note(what: str, remedy: str = "") -> Verdict:
    """Worth knowing; nothing is wrong."""
    return Verdict(Level.NOTE, what, remedy)


def warning(what: str, remedy: str) -> Verdict:
    """It works now, and costs time or safety."""
    return Verdict(Level.WARNING, what, remedy)


def problem(what: str, remedy: str) -> Verdict:
    """Jobs are not run, or can be lost."""
    return Verdict(Level.PROBLEM, what, remedy)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of one check. *remedy* is empty where there is nothing to do."""

    check: str
    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of the checks. *skipped* names the checks that could not be tried."""

    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = ()

    @property
    def worst(self) -> Level:
        """The level of the worst finding."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.OK)

    def at_least(self, level: Level) -> tuple[Finding, ...]:
        """The findings of that level or a worse one, the worst first."""
        found = [finding for finding in self.findings if finding.level.rank >= level.rank]
        return tuple(sorted(found, key=lambda finding: -finding.level.rank))

    def counts(self) -> dict[str, int]:
        """How many findings there are of each level."""
        return {str(level): sum(finding.level is level for finding in self.findings) for level in Level}

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "worst": str(self.worst),
            "counts": self.counts(),
            "findings": [{**asdict(finding), "level": str(finding.level)} for finding in self.findings],
            "skipped": list(self.skipped),
        }


def commands(remedy: str) -> Iterable[str]:
    """The commands that stand in backquotes in a remedy."""
    return remedy.split("`")[1::2]
