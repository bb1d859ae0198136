"""Which release this is, and how releases compare.

Elsewhere: what a schema of another release means (db/migrate.py).
"""

import re
from importlib import metadata
from typing import Final

_FORM: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(dev|a|b|rc)(\d*))?(?:\+.*)?")
_STAGES: Final = ("dev", "a", "b", "rc", None)


def _version() -> str:
    try:
        return metadata.version("pg-supervisor")
    except metadata.PackageNotFoundError:
        return "0+source"  # run from a checkout that is not installed


VERSION: Final = _version()


def older(one: str | None, other: str | None) -> bool:
    """Whether *one* is surely the older release; a source tree without a version is neither older nor newer."""
    first, second = _numbers(one), _numbers(other)
    return first is not None and second is not None and first < second


def _numbers(version: str | None) -> tuple[int, ...] | None:
    """A version as numbers that compare: 0.2.0rc1 before 0.2.0; None where it is none."""
    found = _FORM.fullmatch(version or "")
    if found is None:
        return None
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch or 0), _STAGES.index(stage), int(number or 0)
