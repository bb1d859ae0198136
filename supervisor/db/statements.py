"""The SQL of the product, read from files.

    migrations/NNNN_name.sql   tables; applied once each, in order
    functions/NNN_name.sql     functions and triggers; installed after the last migration
    sql/name.sql               what the service itself sends; one statement per file

Placeholders, and nothing else, are replaced: {schema} (quoted name), {schema_literal} and {channel}
(quoted strings). A schema name that needs thinking about is refused here, and quoted all the same.

Elsewhere: running migrations (migrate.py); a typed function per statement (jobs.py, tend.py).
"""

import os
import re
from functools import cache
from importlib.resources import files
from typing import Final

from psycopg import sql

from supervisor.errors import InvalidJob, SettingsInvalid

DEFAULT_SCHEMA: Final = "supervisor"

_SCHEMA_NAME: Final = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,47}")


def check_schema(schema: str) -> str:
    """Return *schema*, or raise InvalidJob when it cannot name the queue's schema."""
    if not _SCHEMA_NAME.fullmatch(schema):
        raise InvalidJob(
            "schema",
            "must be 1 to 48 of a-z, 0-9 and _, not starting with a digit or pg_, and not information_schema "
            "(set SUPERVISOR_SCHEMA)",
        )
    return schema


def queue_schema(schema: str | None) -> str:
    """*schema*, checked; when not given, SUPERVISOR_SCHEMA or the usual one."""
    if schema is not None:
        return check_schema(schema)
    try:
        return check_schema(os.environ.get("SUPERVISOR_SCHEMA") or DEFAULT_SCHEMA)
    except InvalidJob as error:
        raise SettingsInvalid([f"SUPERVISOR_SCHEMA {error.reason}"]) from None


def channel(schema: str) -> str:
    """The one notification channel of *schema*."""
    return check_schema(schema)


@cache
def render(text: str, schema: str) -> str:
    """*text* with its placeholders replaced for *schema*."""
    check_schema(schema)
    return (
        text.replace("{schema_literal}", sql.Literal(schema).as_string(None))
        .replace("{channel}", sql.Literal(channel(schema)).as_string(None))
        .replace("{schema}", sql.Identifier(schema).as_string(None))
    )


@cache
def statement(name: str, schema: str) -> bytes:
    """The statement of sql/*name*.sql for *schema*, without its header."""
    lines = [line for line in texts()[name].splitlines() if not line.lstrip().startswith("--")]
    return render("\n".join(lines).strip(), schema).encode()


@cache
def texts() -> dict[str, str]:
    """Every statement's text by name, read all at once.

    Not one by one when needed: by then the files may be another release's, or no descriptor be left.
    """
    return dict(scripts("sql"))


def scripts(folder: str) -> list[tuple[str, str]]:
    """The (name, text) of every file in *folder* ("migrations" or "functions"), in order of name."""
    found = [entry for entry in files("supervisor.db").joinpath(folder).iterdir() if entry.name.endswith(".sql")]
    return sorted((entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in found)
