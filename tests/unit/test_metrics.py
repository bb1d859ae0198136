"""Metrics of many processes, killed for real: counters never fall, files stay few, labels stay bounded."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.parser import text_string_to_metric_families

from supervisor import metrics

ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where others count; this process only reads."""
    return tmp_path


def python(code: str, directory: Path, *args: str) -> str:
    """Run *code* in a fresh interpreter; its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory), *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def samples(page: bytes) -> dict[str, float]:
    return {
        sample.name + (json.dumps(sample.labels, sort_keys=True) if sample.labels else ""): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def page(directory: Path) -> dict[str, float]:
    return samples(metrics.render(directory))


COUNT = """
import os, sys
from supervisor import metrics
from supervisor.metrics.numbers import WAIT_SECONDS
directory, slot, times, end = sys.argv[1:5]
metrics.setup(directory, slot)
m = metrics.metrics()
metrics.register_labels("kind", ["mail"]); metrics.register_labels("queue", ["default"])
jobs = metrics.BatchedCounter(m.jobs, "queue", "kind", "outcome")
waits = metrics.BatchedHistogram(m.job_wait_seconds, WAIT_SECONDS, "queue", "kind")
for n in range(int(times)):
    jobs.inc(("default", "mail", "done"))
    waits.observe(0.2, ("default", "mail"))
    if n % 2:
        jobs.flush(), waits.flush()
jobs.flush(), waits.flush()
m.slots_busy.inc(7)
m.workers.labels("ready").set(1)
if end == "kill":
    os.kill(os.getpid(), 9)
"""
DONE = 'supervisor_jobs_total{"kind": "mail", "outcome": "done", "queue": "default"}'


def count(directory: Path, slot: str, times: int, *, kill: bool = False) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(directory), slot, str(times), "kill" if kill else "exit"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.returncode == (-signal.SIGKILL if kill else 0)


def test_a_slot_goes_on_counting_where_a_killed_worker_stopped(directory: Path) -> None:
    count(directory, "w0", 3, kill=True)
    assert page(directory)[DONE] == 3
    count(directory, "w0", 4, kill=True)
    count(directory, "w1", 5)
    seen = page(directory)
    assert seen[DONE] == 12
    of = '"queue": "default"}'
    assert seen['supervisor_job_wait_seconds_count{"kind": "mail", ' + of] == 12
    assert seen['supervisor_job_wait_seconds_bucket{"kind": "mail", "le": "0.1", ' + of] == 0
    assert seen['supervisor_job_wait_seconds_bucket{"kind": "mail", "le": "0.25", ' + of] == 12
    assert abs(seen['supervisor_job_wait_seconds_sum{"kind": "mail", ' + of] - 12 * 0.2) < 1e-9
    assert metrics.totals(directory, "supervisor_jobs_total", "queue", "outcome") == {("default", "done"): 12}
    assert metrics.totals(directory, "supervisor_jobs_total", slot="w1") == {(): 5}


def test_what_a_dead_worker_was_doing_is_over_when_its_slot_is_taken_or_cleared(directory: Path) -> None:
    count(directory, "w0", 1, kill=True)
    count(directory, "w0", 1, kill=True)
    assert page(directory)["supervisor_slots_busy"] == 7
    count(directory, "w1", 1)
    assert page(directory)["supervisor_slots_busy"] == 14
    assert page(directory)['supervisor_workers{"state": "ready"}'] == 2
    metrics.clear_gauges(directory, "w0")
    assert page(directory)["supervisor_slots_busy"] == 7
    assert page(directory)[DONE] == 3


FLEET = """
import os, signal, sys, random
from supervisor import metrics
directory = sys.argv[1]
metrics.setup(directory, metrics.FORK_SERVER)
import prometheus_client as p           # as a handlers module would, at import
BUILD = p.Gauge("shop_build", "Set at import", multiprocess_mode="max"); BUILD.set(1)
MAILS = p.Counter("shop_mails", "Counted in handlers", ["lang"])
ACTIVE = p.Gauge("shop_active", "In progress")  # mode "all": labelled with the slot
real = 0
for round in range(60):
    slot = f"w{round % 3}"
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        metrics.setup(directory, slot)
        m = metrics.metrics()
        ACTIVE.inc()
        for n in range(1000):
            MAILS.labels("en").inc()
            m.claims.inc()
            os.write(write, b".")
            if n == 20 and round % 2:
                break
        os._exit(0)
    os.close(write)
    some = len(os.read(read, 10))
    if round % 2 == 0:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while data := os.read(read, 65536):
        some += len(data)
    os.close(read)
    real += some
    print(real, flush=True)
"""


def test_users_metrics_of_preloaded_handlers_survive_sixty_deaths(directory: Path) -> None:
    """Handlers create metrics in the fork server; every fork of it then counts under its slot."""
    fleet = subprocess.Popen(
        [sys.executable, "-c", FLEET, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    last = {"supervisor_claims_total": 0.0, 'shop_mails_total{"lang": "en"}': 0.0}
    scrapes = 0
    while fleet.poll() is None:
        seen = page(directory)
        for name, value in last.items():
            assert seen.get(name, value) >= value, name
            last[name] = seen.get(name, value)
        scrapes += 1
    assert fleet.stdout is not None
    real = int(fleet.stdout.read().split()[-1])
    assert fleet.wait() == 0
    assert scrapes > 5

    seen = page(directory)
    # A kill between counting and telling us leaves at most one untold per killed worker.
    assert real <= seen["supervisor_claims_total"] <= real + 30
    assert 0 <= seen['shop_mails_total{"lang": "en"}'] - seen["supervisor_claims_total"] <= 30
    assert seen["shop_build"] == 1
    assert {name for name in seen if name.startswith("shop_active")} == {
        f'shop_active{{"pid": "{slot}"}}' for slot in ("forkserver", "w0", "w1", "w2")
    }
    assert max(value for name, value in seen.items() if name.startswith("shop_active")) == 1
    files = [path.name for path in directory.iterdir()]
    assert not [name for name in files if re.search(r"_\d+\.db$", name)]
    assert len(files) <= 4 * 6


def test_numbers_of_processes_that_handlers_fork_do_not_disturb_the_slot(directory: Path) -> None:
    """Two writers of one file made counters fall."""
    python(
        """
import os, sys
from supervisor import metrics
metrics.setup(sys.argv[1], "w0")
m = metrics.metrics()
m.claims.inc(5)
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        m.claims.inc(100)
        m.errors.labels("child").inc()
        if os.fork() == 0:
            m.claims.inc(100)
            os._exit(0)
        os.wait()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
m.claims.inc(5)
assert m.claims._value.get() == 10
""",
        directory,
    )
    assert page(directory)["supervisor_claims_total"] == 10
    assert not [name for name in page(directory) if "errors_total" in name]


def test_setup_moves_all_metrics_even_under_the_same_name(directory: Path) -> None:
    for name in ("old", "new"):
        (directory / name).mkdir()
    python(
        """
import sys
from supervisor import metrics
metrics.setup(sys.argv[1] + "/old", "w0")
metrics.metrics().claims.inc(5)
metrics.setup(sys.argv[1] + "/new", "w0")
metrics.metrics().claims.inc(2)
""",
        directory,
    )
    assert page(directory / "old")["supervisor_claims_total"] == 5
    assert page(directory / "new")["supervisor_claims_total"] == 2


def test_files_of_strangers_and_half_made_files_do_not_spoil_the_page(directory: Path) -> None:
    count(directory, "w0", 2)
    (directory / "counter_4711.db").write_bytes((directory / "counter_w0.db").read_bytes())
    (directory / "counter_w1.db").write_bytes(b"")
    (directory / "histogram_w1.db").write_bytes(b"\xff" * 200)
    (directory / "gauge_livesum_w2.db").write_bytes(b"\0" * 65536)
    assert page(directory)[DONE] == 2
    (directory / "histogram_w1.db").unlink()
    count(directory, "w1", 1)
    assert page(directory)[DONE] == 3


def test_unknown_names_share_one_label_and_the_page_stays_small(directory: Path) -> None:
    size = python(
        """
import sys
from supervisor import metrics
from supervisor.metrics.numbers import RUN_SECONDS
metrics.setup(sys.argv[1], "w0")
metrics.register_labels("kind", (f"kind.{n}" for n in range(500)))
metrics.register_labels("queue", ["default"])
m = metrics.metrics()
jobs = metrics.BatchedCounter(m.jobs, "queue", "kind", "outcome")
runs = metrics.BatchedHistogram(m.job_run_seconds, RUN_SECONDS, "queue", "kind")
for n in range(2000):
    for key in (f"queue-{n}", f"stranger.{n}"), ("default", f"kind.{n % 500}"):
        jobs.inc((*key, "done"))
        runs.observe(1.0, key)
    if n % 7 == 0:
        jobs.flush(), runs.flush()
jobs.flush(), runs.flush()
assert metrics.bounded_label("kind", "kind.7") == "kind.7"
assert metrics.bounded_label("kind", "kind.499") == "other"
assert metrics.bounded_label("nobody", "x") == "other"
assert len(jobs._children._known) <= 100 and not jobs._new
print(len(metrics.render(sys.argv[1])))
""",
        directory,
    )
    assert int(size) < 1_000_000
    seen = page(directory)
    kinds = {name for name in seen if name.startswith("supervisor_jobs_total")}
    assert len(kinds) <= 102
    assert seen['supervisor_jobs_total{"kind": "other", "outcome": "done", "queue": "other"}'] == 2000


def test_a_page_of_many_slots_is_made_quickly(directory: Path) -> None:
    for slot in range(8):
        count(directory, f"w{slot}", 50)
    metrics.render(directory)
    began = time.perf_counter()
    metrics.render(directory)
    assert time.perf_counter() - began < 0.2


def test_the_page_tells_of_the_parent_process(directory: Path) -> None:
    assert page(directory)["process_resident_memory_bytes"] > 0


def test_each_service_begins_with_a_fresh_directory_and_removes_what_dead_ones_left(tmp_path: Path) -> None:
    mine = metrics.make_directory(tmp_path / "run")
    left = python(
        "import sys, pathlib; from supervisor import metrics; print(metrics.make_directory(pathlib.Path(sys.argv[1])))",
        tmp_path / "run",
    ).strip()
    assert Path(left).exists()
    assert Path(left) != mine
    another = metrics.make_directory(tmp_path / "run")
    assert not Path(left).exists()
    assert mine.exists()
    for directory in (mine, another):
        metrics.remove_directory(directory)
    assert list((tmp_path / "run").iterdir()) == []


def test_slot_names_cannot_confuse_the_files(tmp_path: Path) -> None:
    before = values.ValueClass
    for bad in ("", "W0", "a_b", "../x", "0"):
        with pytest.raises(ValueError, match="slot"):
            metrics.setup(tmp_path, bad)
    assert values.ValueClass is before


def test_real_fork_server_hands_users_metrics_to_the_slot(directory: Path) -> None:
    """As the service does it: the parent's setup names the directory, the preload takes it from there."""
    (directory / "numbers").mkdir()
    (directory / "shop_preload.py").write_text(
        "from supervisor import metrics\n"
        "metrics.setup_fork_server()\n"
        "import prometheus_client\n"
        "MAILS = prometheus_client.Counter('shop_mails', 'x')\n"
        "def work(directory, slot):\n"
        "    metrics.setup(directory, slot)\n"
        "    MAILS.inc(3)\n"
    )
    (directory / "shop_main.py").write_text(
        "import sys, multiprocessing as mp\n"
        "from supervisor import metrics\n"
        "import shop_work\n"
        "if __name__ == '__main__':\n"
        "    numbers = sys.argv[1] + '/numbers'\n"
        "    metrics.setup(numbers, metrics.PARENT)\n"
        "    context = mp.get_context('forkserver')\n"
        "    context.set_forkserver_preload(['shop_preload'])\n"
        "    for slot in ('w0', 'w1', 'w0'):\n"
        "        child = context.Process(target=shop_work.work, args=(numbers, slot))\n"
        "        child.start(); child.join(); assert child.exitcode == 0\n"
    )
    (directory / "shop_work.py").write_text(
        "def work(directory, slot):\n    import shop_preload\n    shop_preload.work(directory, slot)\n"
    )
    done = subprocess.run(
        [sys.executable, str(directory / "shop_main.py"), str(directory)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{directory}"},
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert page(directory / "numbers")["shop_mails_total"] == 9
    assert sorted(path.name for path in (directory / "numbers").glob("counter_*")) == [
        "counter_forkserver.db",
        "counter_w0.db",
        "counter_w1.db",
    ]
