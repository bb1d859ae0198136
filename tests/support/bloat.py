"""A table of jobs whose indexes are bloated: many were added, most are gone, and vacuum has been there."""

from typing import Any

from tests.support.database import Database

SESSION = "pg-supervisor rebuild"


def bloat(db: Database, count: int = 60_000, *, queue: str = "later") -> None:
    """Leave indexes of the table job of which more than half is unneeded: job_lane, job_pkey and job_unique, each of
    more than a megabyte."""
    db.execute("alter table supervisor.job set (autovacuum_enabled = off)")
    db.execute(
        "insert into supervisor.job (kind, queue, run_at, unique_key)"
        " select 't.noop', %s, now() + interval '1 day', md5(i::text) from generate_series(1, %s) i",
        [queue, count],
    )
    db.execute("delete from supervisor.job where queue = %s and id %% 50 <> 0", [queue])
    vacuum(db)


def vacuum(db: Database) -> None:
    """Vacuum the table of jobs until no deleted row is left in it: another test's snapshot is no obstacle, ours are."""
    db.execute("select pg_stat_force_next_flush()")
    db.execute("vacuum (analyze, index_cleanup on) supervisor.job")
    db.wait_for("select n_dead_tup < 1000 from pg_stat_all_tables where relid = 'supervisor.job'::regclass", True)


def sizes(db: Database) -> dict[str, int]:
    """The bytes of each index of the table of jobs that can be used."""
    return dict(
        db.rows(
            "select i.relname::text, pg_relation_size(i.oid) from pg_index x join pg_class i on i.oid = x.indexrelid"
            " where x.indrelid = 'supervisor.job'::regclass and x.indisvalid"
        )
    )


def left(db: Database) -> list[str]:
    """Indexes that cannot be used."""
    return [
        row[0]
        for row in db.rows(
            "select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid"
            " where i.relnamespace = 'supervisor'::regnamespace and not x.indisvalid order by 1"
        )
    ]


def remembered(db: Database) -> dict[str, tuple[Any, ...]]:
    """What the table rebuild says: index -> outcome, seconds it waits."""
    return {row[0]: tuple(row[1:]) for row in db.rows("select index_name, outcome, wait_s from supervisor.rebuild")}


def under_way(db: Database) -> bool:
    """Whether a rebuild's statement runs now."""
    return bool(
        db.value(
            "select count(*)::int from pg_stat_activity where application_name = %s and state = 'active'"
            " and datname = current_database() and query like 'reindex%%'",
            [SESSION],
        )
    )
