"""Publish with whatever release is found first: `python -m tests.upgrade.publisher TOPIC SECONDS PAUSE_S`."""

import os
import sys
import time

import psycopg

from supervisor import NewEvent, publish, publish_many


def main() -> None:
    topic, seconds, pause_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    until = time.monotonic() + seconds
    number = 0
    with psycopg.connect(os.environ["SUPERVISOR_DATABASE_URL"], autocommit=True) as conn:
        while time.monotonic() < until:
            number += 1
            key = f"{os.getpid()}-{number % 5}"
            made = [publish(conn, topic, {"n": number}, key=key)]
            made += publish_many(conn, [NewEvent(topic, {"n": number}, key=key), NewEvent(topic, {"n": number})])
            print(*(one.event_id for one in made), flush=True)
            time.sleep(pause_s)


if __name__ == "__main__":
    main()
