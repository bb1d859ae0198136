"""A rolling restart under load on a real cluster, measured: `python -m tests.deploy.k8s_rollout`.

    apply --> ready --> load at a steady rate ---------------------------------> all done --> verdict
                              '-- rollout restart: each old pod is watched from its deletion to its end

Wanted: KUBECONFIG of a throw-away cluster, the images pg-supervisor (the tag of the small overlay) and postgres:18
on its node, kubectl, and the Service's fixed address reachable from here (as it is on the node). A namespace
`supervisor` that is there is deleted first and at the end.

Right: every job ran once (each run leaves a row of its own, committed at once), attempts 1 and crashes 0 each, and
no old pod came near its grace. The last line is JSON; the exit code says whether it was right.
"""

import argparse
import json
import math
import random
import secrets
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

HERE: Final = Path(__file__).parent
NAMESPACE: Final = "supervisor"
ADDRESS: Final = "10.96.0.50"
EFFECTS: Final = (
    "create table effects (job_id bigint not null, pod text not null, at timestamptz default clock_timestamp())"
)
Connection = psycopg.Connection[tuple[Any, ...]]


def kubectl(*words: str, text: str | None = None, check: bool = True) -> str:
    """The output of kubectl in our namespace."""
    done = subprocess.run(["kubectl", "-n", NAMESPACE, *words], input=text, capture_output=True, text=True)
    if check and done.returncode:
        sys.exit(f"kubectl {' '.join(words)}: {done.stderr}")
    return done.stdout


def wait(fact: Any, seconds: float, what: str) -> Any:
    """Wait for a fact, or end the run."""
    deadline = time.monotonic() + seconds
    while not (found := fact()):
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds:g} s: {what}\n{kubectl('get', 'pods')}")
        time.sleep(0.2)
    return found


class Load:
    """Jobs at a steady rate, from a thread of its own."""

    def __init__(self, conn: Connection, rate: float, shortest_s: float, longest_s: float) -> None:
        self.sent = 0
        self._conn, self._rate = conn, rate
        self._range = (shortest_s, longest_s)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(0.05):
            due = int((time.monotonic() - began) * self._rate) - self.sent
            jobs = [
                {"kind": "d.note", "payload": {"seconds": round(random.uniform(*self._range), 2)}} for _ in range(due)
            ]
            if jobs:
                self._conn.execute("select from supervisor.enqueue_many(%s::jsonb)", [json.dumps(jobs)])
                self.sent += due


class Watch:
    """When each pod was told to go, and when it was gone."""

    def __init__(self) -> None:
        self.told: dict[str, float] = {}
        self.took: dict[str, float] = {}
        self._process = subprocess.Popen(
            [
                *("kubectl", "-n", NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/component=supervisor"),
                *("--watch", "--output-watch-events", "-o", "json"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        assert self._process.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        for line in self._process.stdout:
            text += line
            try:
                event, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                continue
            text = text[end:].lstrip()
            self._seen(event["type"], event["object"])

    def _seen(self, what: str, pod: dict[str, Any]) -> None:
        name, now = pod["metadata"]["name"], time.monotonic()
        if pod["metadata"].get("deletionTimestamp"):
            self.told.setdefault(name, now)
        ended = any(one.get("state", {}).get("terminated") for one in pod["status"].get("containerStatuses", []))
        if name in self.told and (ended or what == "DELETED"):
            self.took.setdefault(name, now - self.told[name])

    def close(self) -> None:
        self._process.terminate()


class Told:
    """What an old pod says of its own end: its log, followed until it is gone."""

    def __init__(self, pod: str) -> None:
        self._process = subprocess.Popen(
            ["kubectl", "-n", NAMESPACE, "logs", "--follow", "--tail", "1", pod], stdout=subprocess.PIPE, text=True
        )

    def seconds(self) -> dict[str, float]:
        """From the hook's signal: until it has drained, until SIGTERM, until its last line; NaN for what is missing."""
        said, _ = self._process.communicate(timeout=60)
        at = {}
        for line in said.splitlines():
            event = json.loads(line)
            at[event["event"]] = datetime.fromisoformat(event["timestamp"])
        begun = at.get("supervisor.draining")
        found = {}
        for name in ("drained", "stopping", "stopped"):
            ended = at.get(f"supervisor.{name}")
            found[name] = round((ended - begun).total_seconds(), 1) if begun and ended else math.nan
        return found


def apply(password: str) -> None:
    """Everything but the load."""
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout=120s")
    namespace = HERE.parents[1] / "deploy/kubernetes/overlays/small/namespace.yaml"
    # The database's image starts as root; the shipped label would refuse it. The pods of the service keep to it.
    text = namespace.read_text().replace("enforce: restricted", "enforce: privileged")
    kubectl("apply", "-f", "-", text=text)
    url = f"postgresql://supervisor:{password}@{ADDRESS}:5432/supervisor"
    kubectl("create", "secret", "generic", "db", f"--from-literal=password={password}")
    kubectl("create", "secret", "generic", "supervisor-database", f"--from-literal=url={url}")
    kubectl("apply", "-f", str(HERE / "kubernetes" / "database.yaml"))
    kubectl("rollout", "status", "deployment/db", "--timeout=300s")
    kubectl("create", "configmap", "test-handlers", f"--from-file={HERE / 'handlers' / '__init__.py'}")
    kustomized = subprocess.run(
        ["kubectl", "kustomize", HERE / "kubernetes"], capture_output=True, text=True, check=True
    )
    kubectl("apply", "-f", "-", text=kustomized.stdout)


def main() -> int:
    """Apply, load, restart, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200, help="jobs a second")
    parser.add_argument("--before", type=float, default=10, help="seconds of load before the restart")
    parser.add_argument("--after", type=float, default=10, help="seconds of load after it")
    parser.add_argument("--job", type=float, nargs=2, default=(0.5, 3.0), help="shortest and longest job, seconds")
    parser.add_argument("--keep", action="store_true", help="leave everything there")
    words = parser.parse_args()

    password = secrets.token_hex(16)
    apply(password)
    kubectl("rollout", "status", "deployment/supervisor", "--timeout=300s")
    conninfo = f"postgresql://supervisor:{password}@{ADDRESS}:5432/supervisor"
    with psycopg.connect(conninfo, autocommit=True, row_factory=tuple_row) as conn:
        conn.execute(EFFECTS)
        with psycopg.connect(conninfo, autocommit=True, row_factory=tuple_row) as load_conn:
            load = Load(load_conn, words.rate, *words.job)
            watch = Watch()
            load.start()
            time.sleep(words.before)
            old = kubectl("get", "pods", "-l", "app.kubernetes.io/component=supervisor", "-o", "name").split()
            logs = [Told(pod) for pod in old]
            began = time.monotonic()
            kubectl("rollout", "restart", "deployment/supervisor")
            kubectl("rollout", "status", "deployment/supervisor", "--timeout=300s")
            rolled = time.monotonic() - began
            wait(lambda: len(watch.took) >= len(old), 120, "all old pods are gone")
            time.sleep(words.after)
            load.stop()

        def left() -> int:
            row = conn.execute("select count(*)::int from supervisor.job").fetchone()
            assert row is not None
            return int(row[0])

        wait(lambda: left() == 0, 120, "all jobs are done")
        watch.close()
        verdict = judge(conn, load.sent)
    verdict |= {
        "jobs": load.sent,
        "rate_per_s": words.rate,
        "rollout_s": round(rolled, 1),
        "after_the_hooks_signal_s": [log.seconds() for log in logs],
        "deletion_to_end_seen_s": sorted(round(took, 1) for took in watch.took.values()),
    }
    if not words.keep:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    print(json.dumps(verdict))
    return 0 if verdict["right"] else 1


def judge(conn: Connection, sent: int) -> dict[str, Any]:
    """What the database says of the jobs."""
    [row] = conn.execute(
        "select count(*)::int, count(*) filter (where attempts = 1)::int, coalesce(sum(crashes), 0)::int "
        "from supervisor.jobs where status = 'done'"
    ).fetchall()
    done, first_time, crashes = row
    [runs] = conn.execute(
        "select count(*)::int, count(distinct job_id)::int, count(distinct pod)::int from effects"
    ).fetchall()
    return {
        "right": done == first_time == sent == runs[0] == runs[1] and crashes == 0,
        "done": done,
        "attempts_1": first_time,
        "crashes": crashes,
        "runs": runs[0],
        "pods": runs[2],
    }


if __name__ == "__main__":
    sys.exit(main())
