"""B42: workers come and go by hundreds, half of them killed; files stay few, pages quick, and no count is lost."""

import random
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.client import enqueue_many
from supervisor.newjob import NewJob
from tests.support import proc
from tests.support.database import Database
from tests.support.observe_handlers import MODULES
from tests.support.service import Service
from tests.support.sizes import FULL, within
from tests.support.waiting import wait_until

Start = Callable[..., Service]
RECYCLES = 500 if FULL else 24
EVERY_S = 1.0 if FULL else 0.2
WORKERS = 2
SLOTS = WORKERS + 2  # and the parent's and the fork server's
FILES_OF_A_SLOT = 3 + 6  # counters, histograms, summaries, and a gauge file per mode


class Scraper(threading.Thread):
    """Asks for the page at a steady rate and keeps what it saw."""

    def __init__(self, service: Service, run_dir: Path) -> None:
        super().__init__(name="scraper", daemon=True)
        self._service, self._run_dir = service, run_dir
        self._over = threading.Event()
        self.took: list[float] = []
        self.done: list[float] = []
        self.files: list[int] = []

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        began = time.monotonic()
        page = self._service.get("/metrics", timeout_s=30)[1]
        self.took.append(time.monotonic() - began)
        self.done.append(done_on(page))
        self.files.append(len(list(self._run_dir.glob("metrics-*/*.db"))))

    def stop(self) -> None:
        self._over.set()
        self.join(40)


def done_on(page: str) -> float:
    lines = (line for line in page.splitlines() if line.startswith("supervisor_jobs_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'outcome="done"' in line)


@pytest.mark.timeout(3600 if FULL else 180)
def test_counts_are_exact_and_files_few_after_many_recycles(
    db: Database, service: Start, tmp_path: Path, report: Callable[[str], None]
) -> None:
    """Half of the workers leave by themselves after some jobs, half are killed in the middle of claiming and storing.

    A count that was written too early, too late or twice shows in the end: it must equal the history, job for job.
    """
    run_dir = tmp_path / "run"
    one = service(
        handlers=MODULES, processes=WORKERS, concurrency=5, max_jobs=300, restart_budget=10_000, retry_base_s=0.01,
        run_dir=run_dir,
    )  # fmt: skip
    conn, rng = db.connect(), random.Random(42)
    batch = [NewJob("t.noop", max_crashes=1000)] * 180 + [NewJob("o.order", queue="orders", max_crashes=1000)] * 20
    scraper = Scraper(one, run_dir)
    scraper.start()
    kills = 0

    def restarts() -> float:
        return one.metric("supervisor_restarts_total")

    while (seen := restarts()) < RECYCLES:
        if db.value("select count(*) from supervisor.job") < 400:
            enqueue_many(conn, batch)
        if kills <= seen / 2 and (pids := one.worker_pids()):
            time.sleep(rng.random() * 0.05)  # anywhere in its round: where exactly is the point of the test
            proc.kill(rng.choice(pids))
            kills += 1
    db.wait_for("select count(*) from supervisor.job", 0, 120)
    true = db.value("select count(*)::int from supervisor.history")
    wait_until(lambda: one.metric("supervisor_jobs_total", outcome="done") >= true, 20, "all that is done is counted")
    for _ in range(5):
        scraper.look()
    scraper.stop()

    counted = one.metric("supervisor_jobs_total", outcome="done")
    middle, worst = statistics.median(scraper.took), max(scraper.took)
    size = len(one.get("/metrics")[1])
    report(
        f"{restarts():g} restarts, {kills} kills, {true} jobs done, {counted:g} counted; {max(scraper.files)} files;"
        f" page of {size // 1024} KB in {middle * 1000:.0f} ms (median, under load),"
        f" {min(scraper.took[-5:]) * 1000:.0f} ms at rest, {worst * 1000:.0f} ms at most"
    )
    assert counted == true
    assert scraper.done == sorted(scraper.done), "the counter fell"
    assert max(scraper.files) <= SLOTS * FILES_OF_A_SLOT
    assert scraper.files[-1] <= scraper.files[len(scraper.files) // 2] + FILES_OF_A_SLOT, "files pile up"
    assert min(scraper.took[-5:]) < within(0.2, busy_s=1)
    assert middle < within(0.2, busy_s=2)
    assert 0.4 * RECYCLES <= kills <= 0.7 * RECYCLES

    # A service that starts begins from clean files, also after one that was killed.
    one.kill()
    wait_until(lambda: not one.processes(), 30, "orphaned workers have left")
    next_one = service(handlers=MODULES, processes=WORKERS, run_dir=run_dir)
    assert len(list(run_dir.glob("metrics-*"))) == 1
    assert next_one.metric("supervisor_jobs_total", outcome="done") == 0
    assert next_one.stop() == 0
    assert list(run_dir.glob("metrics-*")) == []
