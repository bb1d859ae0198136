"""One of many that add jobs with keys at once: python -m tests.support.key_producer CONNINFO NUMBER JOBS SEED.

Each job is added in a transaction of its own, that may stay open for a while, or be rolled back. What was committed is
in the table `asked`, with the times just before it was added and just after its commit, by the database's clock.
"""

import random
import sys
import time
from typing import Final

import psycopg

from supervisor import enqueue

KEYS: Final = 50
ASKED: Final = """
create table asked (
    job_id    bigint primary key,
    key       text not null,
    producer  int not null,
    began     timestamptz not null,
    committed timestamptz
)
"""
_ADD: Final = "insert into asked (job_id, key, producer, began) values (%s, %s, %s, %s)"
_DONE: Final = "update asked set committed = clock_timestamp() where job_id = %s"


def produce(conninfo: str, number: int, jobs: int, seed: int) -> None:
    """Add so many jobs, and as many again that are rolled back one time in five."""
    rng = random.Random(seed * 1000 + number)
    with psycopg.connect(conninfo, autocommit=True, application_name="key producer") as conn:
        added = 0
        while added < jobs:
            key = f"key {rng.randrange(KEYS)}"
            [(began,)] = conn.execute("select clock_timestamp()").fetchall()
            with conn.transaction() as transaction:
                if rng.random() < 0.1:
                    job = enqueue(conn, "t.fail", {"times": 1}, ordering_key=key, max_crashes=1000).id
                else:
                    seconds = 0.005 * rng.random()
                    job = enqueue(conn, "t.sleep", {"seconds": seconds}, ordering_key=key, max_crashes=1000).id
                conn.execute(_ADD, [job, key, number, began])
                time.sleep(0.05 * rng.random() ** 4)
                if rng.random() < 0.2:
                    raise psycopg.Rollback(transaction)
                added += 1
            conn.execute(_DONE, [job])


if __name__ == "__main__":
    produce(sys.argv[1], *map(int, sys.argv[2:]))
