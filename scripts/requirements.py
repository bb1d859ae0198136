"""Prints what the project needs at run time, one requirement a line: the Dockerfile installs it before the code.

    python scripts/requirements.py dashboard,webhook > requirements.txt

Always true: what pyproject.toml names is the only list there is. Extras that name further extras of this
project are followed.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN_EXTRA = re.compile(rf"{re.escape(PROJECT['name'])}\[([\w, -]+)\]")


def of_extra(name: str) -> list[str]:
    """The requirements of one extra."""
    known = PROJECT["optional-dependencies"]
    if name not in known:
        sys.exit(f"{name!r} is not an extra of {PROJECT['name']}: choose from {', '.join(sorted(known))}")
    found = []
    for requirement in known[name]:
        own = OWN_EXTRA.fullmatch(requirement)
        found += of_extras(own[1]) if own else [requirement]
    return found


def of_extras(names: str) -> list[str]:
    """The requirements of extras, comma separated."""
    return [one for name in names.split(",") if name.strip() for one in of_extra(name.strip())]


if __name__ == "__main__":
    wanted = PROJECT["dependencies"] + of_extras(",".join(sys.argv[1:]))
    print(*dict.fromkeys(wanted), sep="\n")
