"""A database whose encoding is none: what a cluster made with the locale C and no further word has."""

import psycopg

from supervisor import enqueue
from supervisor.db.migrate import migrate
from tests.support.database import EFFECTS, Database
from tests.support.servers import Server
from tests.support.service import Service


def test_a_sql_ascii_database_serves_like_any_other(server: Server) -> None:
    """It once ended every worker at its first claim: the driver returned bytes for text."""
    name = "t_sql_ascii"
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute(f"create database {name} template template0 encoding 'SQL_ASCII' locale 'C'".encode())
    db = Database(server, name)
    try:
        migrate(db.conninfo)
        db.execute(EFFECTS)
        with psycopg.connect(db.conninfo, autocommit=True) as conn:
            job = enqueue(conn, "t.effect", {"note": "grüße"})
        running = Service(db)
        with running:
            running.wait_ready()
            db.wait_for("select count(*)::int from supervisor.history", 1)
            assert running.stop() == 0
        with psycopg.connect(db.conninfo, client_encoding="utf8") as conn:
            assert conn.execute("select job_id, note from effects").fetchall() == [(job.id, "grüße")]
    finally:
        db.drop()
