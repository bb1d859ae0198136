"""compose.yaml and the image in it: up at the first try, stopped without loss, taken over from when killed."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nats
import pytest

from supervisor import exits
from supervisor.parent.service import MOST_LINKS
from tests.deploy.shipped import ROOT
from tests.deploy.stack import IMAGE, Stack, timed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # the first test waits for an engine, images and a build

LARGEST_MB = 260
"""What the image may weigh, its base included: a step in it is noticed."""

ASK_READINESS = """
from http.client import HTTPConnection
one = HTTPConnection("127.0.0.1", 9090, timeout=5)
one.request("GET", "/readyz")
print(one.getresponse().status)
"""

HELD_BY = """
select count(*)::int
  from supervisor.job
  join supervisor.session on session.id = job.lease
 where session.name like %s
"""


@pytest.fixture(autouse=True)
def _no_jobs(stack: Stack) -> Iterator[None]:
    yield
    stack.forget()


def get(url: str, **headers: str) -> tuple[int, str]:
    """Status and text of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


# -- the shipped file as it is


def test_up_from_a_clean_checkout_is_healthy_and_runs_the_labs_jobs(stack: Stack) -> None:
    for service, count in (("db", 1), ("supervisor", 2), ("dashboard", 1)):
        containers = stack.containers(service)
        assert len(containers) == count
        for container in containers:
            assert stack.inspect(container)["State"]["Health"]["Status"] == "healthy"
    for service in ("secrets", "migrate"):
        [container] = stack.containers(service)
        assert stack.inspect(container)["State"]["ExitCode"] == 0
    stack.wait_ready(2)

    stack.supervisor("enqueue", "email", '{"n": 1}')
    ids = [job for kind in ("email", "flaky", "slow") for job in stack.enqueue(kind, {"n": 1}, count=20)]
    broken = stack.enqueue("broken", {"n": 1}, max_attempts=3)
    wait_until(lambda: stack.statuses(ids) == {"done": 60}, 30.0, "the lab's jobs are done")
    wait_until(lambda: stack.statuses(broken) == {"dead": 1}, 30.0, "what always fails is dead")
    parents = json.loads(stack.supervisor("status", "--json"))["supervisors"]
    assert len({one["name"] for one in parents}) == 2


def test_a_replica_has_the_connections_that_the_operations_page_counts(stack: Stack) -> None:
    """Its formula is what people set max_connections by."""
    query = (
        "select (select count(*)::int from pg_stat_activity where application_name like 'pg-supervisor%' "
        "and application_name not like '%dashboard%'), (select count(*)::int from supervisor.parent)"
    )
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    told = re.search(r"`(\d+) \+ processes` per replica; idle, `(\d+) \+ processes`", page)
    assert told
    assert int(told[1]) == MOST_LINKS + 3, "the shared ones, that of renewals, LISTEN, a vacuum"
    processes = 2
    expected = 2 * (int(told[2]) + processes)
    wait_until(lambda: stack.rows(query) == [(expected, 2)], 60.0, f"two idle replicas have {expected} connections")


def test_prometheus_scrapes_every_replica_and_has_its_rules(stack: Stack) -> None:
    stack.compose("--profile", "monitoring", "up", "--detach", "--wait", "--no-deps", "prometheus")
    port = stack.env["PROMETHEUS_PORT"]

    def ask(path: str) -> Any:
        return json.loads(get(f"http://127.0.0.1:{port}/api/v1/{path}")[1])["data"]

    def values(query: str) -> list[float]:
        return [float(one["value"][1]) for one in ask(f"query?query={quote(query)}")["result"]]

    wait_until(lambda: values('up{job="supervisor"}') == [1.0, 1.0], 60.0, "both replicas are up")
    stack.enqueue("email", {"n": 1}, count=10)
    wait_until(lambda: sum(values("supervisor_jobs_total")) >= 10, 60.0, "finished jobs are in the series")
    assert sum(values('supervisor_workers{state="ready"}')) == 4
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert rules
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []


async def test_events_go_to_the_broker_and_come_back_as_jobs(stack: Stack) -> None:
    """The profile `broker`: an event of a transaction is on a subject of NATS, and by the consume role a job."""
    stack.compose("--profile", "broker", "up", "--detach", "--wait", "nats", "relay")
    [relay] = stack.containers("relay")
    assert stack.inspect(relay)["State"]["Health"]["Status"] == "healthy"
    client = await nats.connect(f"nats://{stack.host('nats')}:4222")
    try:
        js = client.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        stack.change(replicas=1, mounted=False, consume_url="nats://nats:4222", consume="orders.created=email")
        for n in range(20):
            stack.rows("select supervisor.publish('orders.created', jsonb_build_object('n', %s::int), key => 'k')", n)
        done = "select count(*)::int from supervisor.history where kind = 'email'"
        wait_until(lambda: stack.value(done) == 20, 60.0, "each event was a job, and is done")
        assert stack.value("select count(*)::int from supervisor.outbox") == 0
        assert stack.value("select count(*)::int from supervisor.inbox") == 20
        assert (await js.stream_info("ORDERS")).state.messages == 20
        ordered = await js.subscribe("orders.created", ordered_consumer=True)
        assert [json.loads((await ordered.next_msg(timeout=10)).data)["n"] for _ in range(20)] == list(range(20))
    finally:
        await client.close()

    # Its page is scraped under a name of its own, and a stop is heard.
    stack.compose("--profile", "monitoring", "up", "--detach", "--wait", "--no-deps", "prometheus")
    query = 'supervisor_outbox_events_total{job="supervisor-relay",outcome="published"}'
    url = f"http://127.0.0.1:{stack.env['PROMETHEUS_PORT']}/api/v1/query?query={quote(query)}"
    wait_until(
        lambda: [float(one["value"][1]) for one in json.loads(get(url)[1])["data"]["result"]] == [20.0],
        60.0,
        "what was published is in the series",
    )
    begun = time.monotonic()
    stack.compose("--profile", "broker", "stop", "relay")
    assert timed(begun) < 10
    assert stack.inspect(relay)["State"]["ExitCode"] == exits.OK
    stack.compose("--profile", "broker", "rm", "--force", "--stop", "relay", "nats")


def test_the_dashboard_is_on_loopback_and_wants_its_token(stack: Stack) -> None:
    [container] = stack.containers("dashboard")
    ports = stack.inspect(container)["NetworkSettings"]["Ports"]["9180/tcp"]
    assert [one["HostIp"] for one in ports] == ["127.0.0.1"]
    url = f"http://127.0.0.1:{stack.env['DASHBOARD_PORT']}/"
    token = stack.exec(container, "cat", "/run/secrets/dashboard_token").strip()
    for headers in ({}, {"Authorization": f"Bearer {token[:-1]}x"}):
        assert 'type="password"' in get(url + "jobs", **headers)[1]
    status, page = get(url + "jobs", Authorization=f"Bearer {token}")
    assert status == 200
    assert 'type="password"' not in page


def test_no_password_is_in_what_the_engine_shows(stack: Stack) -> None:
    password = stack.exec(stack.containers("db")[0], "cat", "/run/secrets/db_password")
    assert len(password) >= 32
    for service in ("db", "migrate", "supervisor", "dashboard"):
        for container in stack.containers(service):
            assert password not in json.dumps(stack.inspect(container))
            assert password not in stack.docker("logs", container)
    assert password not in stack.docker("history", "--no-trunc", IMAGE)


def test_the_service_is_process_1_and_neither_root_nor_able_to_write_nor_to_build(
    stack: Stack, report: Callable[[str], None]
) -> None:
    container = stack.containers("supervisor")[0]
    assert stack.exec(container, "id", "-u").strip() == "10001"
    assert stack.inspect(container)["Config"]["User"] == "10001:10001"
    words = stack.exec(container, "cat", "/proc/1/cmdline").split("\0")
    assert words[1:3] == ["/opt/supervisor/bin/supervisor", "run"]
    assert "ok" not in stack.exec(container, "sh", "-c", "(echo > /app/x && echo ok) 2> /dev/null || true")
    tools = stack.exec(container, "sh", "-c", "for t in cc gcc make rustc git; do command -v $t; done; true")
    assert tools == ""
    assert stack.exec(container, "cat", "/proc/1/status").split("CapEff:")[1].split()[0].strip("0") == ""
    layers = stack.docker("image", "inspect", "--format", "{{.Size}}", IMAGE)
    base = stack.docker("image", "inspect", "--format", "{{.Size}}", "python:3.13-slim")
    size, of_base = int(layers) / 1e6, int(base) / 1e6
    report(f"image: {size:.0f} MB, {size - of_base:.0f} of them over its base")
    assert size < LARGEST_MB


def test_the_container_is_unhealthy_only_when_its_loop_does_not_turn(stack: Stack) -> None:
    """B44: with the database away the service is not ready, and yet there is no reason to restart it."""
    container = stack.containers("supervisor")[0]
    look = ("python", "-IS", "/opt/supervisor/livez.py")

    def readiness() -> int:
        return int(stack.exec(container, "python", "-c", ASK_READINESS))

    assert readiness() == 200
    stack.compose("stop", "db")
    try:
        wait_until(lambda: readiness() == 503, 30.0, "it says that it is not ready")
        assert '"status": "ok"' in stack.exec(container, *look)
    finally:
        stack.compose("up", "--detach", "--wait", "--no-deps", "db")
        stack.hang_up()
    wait_until(lambda: readiness() == 200, 30.0, "it is ready again")


def test_an_image_derived_as_the_operations_page_says_has_its_handlers(stack: Stack, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    recipe = re.search(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    assert recipe
    (tmp_path / "Dockerfile").write_text(recipe[1])
    (tmp_path / "requirements.txt").write_text("iniconfig\n")
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "__init__.py").write_text("import iniconfig\n")
    stack.docker("build", "--quiet", "--target", "runtime", "--tag", "pg-supervisor:runtime", ".", timeout_s=300)
    stack.docker("build", "--quiet", "--tag", "pg-supervisor:derived", str(tmp_path), timeout_s=300)
    look = "import handlers; from importlib.metadata import version; print(version('iniconfig'))"
    found = stack.docker("run", "--rm", "--entrypoint", "python", "pg-supervisor:derived", "-c", look).strip()
    assert f"iniconfig=={found}\n" in (ROOT / "constraints.txt").read_text()


# -- stopped


def test_a_stop_lets_what_runs_finish_and_leaves_the_rest_untouched(
    stack: Stack, report: Callable[[str], None]
) -> None:
    """B06: 3 jobs of 4 s running and 30 claimed but not started, a grace of 30 s and more."""
    stack.change(replicas=1, processes=1, concurrency=3, prefetch=30)
    [container] = stack.containers("supervisor")
    ids = stack.enqueue("d.sleep", {"seconds": 4}, count=33)
    wait_until(lambda: stack.statuses(ids) == {"running": 33}, 10.0, "3 run and 30 are claimed")
    begun = time.monotonic()
    stack.docker("stop", "--timeout", "30", container)  # the engine is told at once; compose takes a moment to
    took = timed(begun)
    assert stack.inspect(container)["State"]["ExitCode"] == exits.OK
    assert stack.statuses(ids) == {"done": 3, "queued": 30}
    untouched = stack.value(
        "select count(*)::int from supervisor.job "
        "where attempts = 0 and crashes = 0 and lease is null and run_at <= now()"
    )
    assert untouched == 30
    assert took < 10
    report(f"B06: stopped after {took:.1f} s, code 0: 3 done, 30 queued and untouched")


def test_a_job_that_does_not_stop_is_given_up_at_the_drain_limit(stack: Stack, report: Callable[[str], None]) -> None:
    """B07: drain limit 5 s, a job that ignores its cancellation for 60 s."""
    stack.change(replicas=1, processes=2, concurrency=4, prefetch=0, drain_timeout_s=5)
    [container] = stack.containers("supervisor")
    stubborn = stack.enqueue("d.stubborn", {"seconds": 60})
    short = stack.enqueue("d.sleep", {"seconds": 2}, count=4)
    wait_until(lambda: stack.statuses([*stubborn, *short]) == {"running": 5}, 10.0, "all five run")
    begun = time.monotonic()
    stack.compose("stop", "supervisor")
    took = timed(begun)
    assert stack.inspect(container)["State"]["ExitCode"] == exits.CUT
    assert stack.statuses(short) == {"done": 4}
    [row] = stack.rows("select status, attempts, crashes from supervisor.jobs where id = any(%s)", stubborn)
    assert row == ("queued", 0, 0)
    assert took < 5 + 5
    report(f"B07: stopped after {took:.1f} s with a drain limit of 5 s; the job that ignored it is queued, uncharged")


def test_a_stop_in_the_first_moments_is_heard(stack: Stack) -> None:
    """B06: process 1 has no default for SIGTERM; without a handler from the start it would wait for the kill."""
    for pause in (0.3, 0.6, 1.0):
        container = stack.docker("run", "--detach", "--env", "SUPERVISOR_DATABASE_URL=host=127.0.0.1", IMAGE).strip()
        try:
            time.sleep(pause)  # the moment of the stop is what differs
            begun = time.monotonic()
            stack.docker("stop", "--timeout", "30", container)
            assert timed(begun) < 10
            assert stack.inspect(container)["State"]["ExitCode"] in (exits.OK, 143)
        finally:
            stack.docker("rm", "--force", container)


def test_no_zombie_stays_when_jobs_leave_programs_behind(stack: Stack) -> None:
    """B06: orphans come to process 1, which reaps what it never started."""
    stack.change(replicas=1, processes=2, concurrency=5)
    [container] = stack.containers("supervisor")
    ids = stack.enqueue("d.litter", {"count": 5, "seconds": 0.5}, count=10)
    wait_until(lambda: stack.statuses(ids) == {"done": 10}, 20.0, "all jobs are done")

    def litter() -> list[str]:
        listed = stack.docker("top", container, "-o", "pid,ppid,stat,comm").splitlines()[1:]
        return [line for line in listed if "sleep" in line or line.split()[2].startswith("Z")]

    wait_until(lambda: litter() == [], 10.0, "what they left has ended and was reaped")


def test_a_killed_container_is_taken_over_from_after_its_lease(stack: Stack, report: Callable[[str], None]) -> None:
    stack.change(replicas=2, processes=1, concurrency=5, lease_s=4)
    ids = stack.enqueue("d.sleep", {"seconds": 2}, count=40)
    wait_until(lambda: stack.statuses(ids).get("running", 0) >= 10, 10.0, "both run")
    victim = stack.containers("supervisor")[0]
    name = stack.inspect(victim)["Config"]["Hostname"]
    held = stack.value(HELD_BY, name + "/%")
    assert held
    stack.docker("kill", "--signal", "KILL", victim)
    begun = time.monotonic()

    wait_until(lambda: stack.value(HELD_BY, name + "/%") == 0, 15.0, "its leases have passed")
    took = timed(begun)
    wait_until(lambda: stack.statuses(ids) == {"done": 40}, 40.0, "the other one has done them all")
    assert 2.0 < took < 4 + 3
    report(f"SIGKILL of a container: its {held} jobs were free again after {took:.1f} s (lease 4 s)")


def test_a_service_that_is_given_too_little_grace_says_so_in_the_container(stack: Stack) -> None:
    """B07."""
    stack.change(replicas=1, drain_timeout_s=60)
    assert "grace.short" in stack.compose("logs", "--no-log-prefix", "supervisor")
