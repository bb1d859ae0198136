"""Enqueue with whatever release is found first: `python -m tests.upgrade.producer KIND SECONDS PAUSE_S`."""

import os
import sys
import time

import psycopg

from supervisor.client import NewJob, enqueue, enqueue_many


def main() -> None:
    kind, seconds, pause_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    until = time.monotonic() + seconds
    number = 0
    with psycopg.connect(os.environ["SUPERVISOR_DATABASE_URL"], autocommit=True) as conn:
        while time.monotonic() < until:
            number += 1
            ids = [enqueue(conn, kind, {}).id]
            ids += [job.id for job in enqueue_many(conn, [NewJob(kind, {}, priority=number % 3)] * 2)]
            ids.append(enqueue(conn, kind, {}, unique_key=f"{os.getpid()}-{number}", in_=0.2).id)
            print(*ids, flush=True)
            time.sleep(pause_s)


if __name__ == "__main__":
    main()
