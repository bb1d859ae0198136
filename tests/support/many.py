"""A queue with many jobs in mixed states, made by a few statements of plain SQL."""

from tests.support.database import Database

_DATA = "jsonb_build_object('n', n %% 5000, 'text', case when n %% 4001 = 7 then 'a Needle' else md5(n::text) end)"
_QUEUE = "case when n %% 3989 = 3 then 'rare' else 'q' || to_char(n %% 20, 'FM00') end"
_KIND = "case when n %% 3989 = 3 then 'rare' else 'mail.send' end"


def fill(db: Database, rows: int) -> dict[str, int]:
    """*rows* jobs: six of ten done, one dead or cancelled, two due, one scheduled; forty run. Ids lie over all tables.

    Returns:
        `last`: the last id; `queued`, `running`, `dead`, `done`: an id of each.
    """
    db.execute(
        "truncate supervisor.job, supervisor.dead_letter, supervisor.history, supervisor.session, supervisor.lane"
    )
    db.execute(
        "insert into supervisor.history (id, finished_at, started_at, run_at, created_at, claims, attempts,"
        " max_attempts, crashes, max_crashes, priority, queue, kind, payload)"
        f" select n, now(), now(), now(), now(), 1, 1, 20, 0, 3, 0, {_QUEUE}, {_KIND}, {_DATA}"
        " from generate_series(1, %s) n where n %% 10 in (0, 2, 3, 5, 6, 8)",
        [rows],
    )
    db.execute(
        "insert into supervisor.dead_letter (id, status, reason, finished_at, run_at, created_at, claims, attempts,"
        " max_attempts, crashes, max_crashes, priority, queue, kind, payload, headers, last_error, errors)"
        " select n, case when n %% 30 = 1 then 'cancelled' else 'dead' end, 'attempts', now() - n * interval '1 ms',"
        f" now(), now(), 1, 1, 20, 0, 3, 0, {_QUEUE}, {_KIND}, {_DATA}, '{{}}', 'RuntimeError: no', '[]'"
        " from generate_series(1, %s) n where n %% 10 = 1",
        [rows],
    )
    db.execute(
        f"insert into supervisor.job (id, kind, queue, run_at, payload) select n, {_KIND}, {_QUEUE},"
        " now() + (case when n %% 10 = 4 then 1 else -1 end) * interval '1 h' + n * interval '1 ms',"
        f" {_DATA} from generate_series(1, %s) n where n %% 10 in (4, 7, 9)",
        [rows],
    )
    db.execute("insert into supervisor.session (id, name, expires_at) values (5, 'w', now() + interval '1 d')")
    db.execute(
        "update supervisor.job set lease = 5, started_at = now(), claims = 1 where id in"
        " (select id from supervisor.job where queue <> 'rare' order by run_at limit 40)"
    )
    db.execute("select supervisor.discover()")
    db.execute("analyze supervisor.job, supervisor.dead_letter, supervisor.history")
    return {
        "last": rows,
        "queued": db.value("select id from supervisor.job where lease is null order by id desc limit 1"),
        "running": db.value("select id from supervisor.job where lease is not null order by id limit 1"),
        "dead": rows // 2 // 10 * 10 + 1,
        "done": rows // 2 // 10 * 10 + 2,
    }
