"""What the migrations make: storage parameters and indexes, read from the migrations themselves.

Nobody keeps a second list, so nothing can be forgotten in it; a test compares what is read here with a fresh
schema. Migrations are written in one style (db/migrations), which is all that is understood here.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from supervisor.db.statements import scripts

_TABLE: Final = re.compile(r"create (?:unlogged )?table \{schema\}\.(\w+)\s*(partition of\b)?(.*)", re.DOTALL)
_WITH: Final = re.compile(r"\)\s*with\s*\(([^()]*)\)$", re.DOTALL)
_SET: Final = re.compile(r"alter table \{schema\}\.(\w+)\s+set\s*\(([^()]*)\)", re.DOTALL)
_INDEX: Final = re.compile(r"create (unique )?index (\w+) on \{schema\}\.(\w+)(.*)", re.DOTALL)
_KEY_OF_TABLE: Final = re.compile(r"primary key\s*\(([^()]*)\)")
_KEY_OF_COLUMN: Final = re.compile(r"^\s*(\w+)\s[^,\n]*\bprimary key\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Index:
    """An index: its table, and the statement that makes it again, with {schema} to be filled in."""

    table: str
    made_by: str


@dataclass(slots=True)
class Shipped:
    """By name: each table's storage parameters, each index."""

    options: dict[str, dict[str, str]] = field(default_factory=dict)
    indexes: dict[str, Index] = field(default_factory=dict)


@cache
def shipped() -> Shipped:
    """What all migrations together make."""
    found = Shipped({"migration": {}})
    found.indexes["migration_pkey"] = _key("migration", "version")
    partitioned = set()
    for _, text in scripts("migrations"):
        for statement in re.sub(r"--[^\n]*", "", text).split(";"):
            statement = statement.strip()
            if table := _TABLE.fullmatch(statement):
                name, part, body = table.groups()
                if "partition by" in body:
                    partitioned.add(name)
                else:
                    options = _WITH.search(statement)
                    found.options[name] = _pairs(options[1]) if options else {}
                key = _KEY_OF_TABLE.search(body) or _KEY_OF_COLUMN.search(body)
                if key and not part:
                    found.indexes[f"{name}_pkey"] = _key(name, key[1])
            elif later := _SET.fullmatch(statement):
                found.options[later[1]].update(_pairs(later[2]))
            elif index := _INDEX.fullmatch(statement):
                unique, name, on, rest = index.groups()
                how = "" if on in partitioned else " concurrently"
                made_by = f"create {unique or ''}index{how} {name} on {{schema}}.{on}{rest}"
                found.indexes[name] = Index(on, " ".join(made_by.split()))
    return found


def _key(table: str, columns: str) -> Index:
    return Index(table, f"alter table {{schema}}.{table} add primary key ({columns})")


def _pairs(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs}
