"""Whoever does not use a library does not load it, nor its adapter."""

import subprocess
import sys

CODE = """
import sys
import psycopg
from supervisor import enqueue
from supervisor.errors import InvalidJob
try:
    enqueue(object(), "adapters.mail", {})
except InvalidJob as error:
    print(error)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("django", "sqlalchemy", "asyncpg", "greenlet")))
print(sorted(name for name in sys.modules if name.startswith("supervisor.adapters.")))
import sqlalchemy
try:
    enqueue(sqlalchemy.create_engine("sqlite://").connect(), "adapters.mail", {})
except InvalidJob as error:
    print(error)
print("sqlalchemy.orm" in sys.modules or "sqlalchemy.ext.asyncio" in sys.modules)
"""


def test_nothing_is_imported_that_was_not() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "job refused: conn: must be a psycopg Connection or AsyncConnection, an asyncpg Connection, a Django "
        "connection, or a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession, not object",
        "[]",
        "[]",
        "job refused: conn: is SQLAlchemy's for sqlite: must be PostgreSQL",
        "False",
    ]
