"""The benches run and their figures make sense; how fast anything is, is not judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(*words: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip


@pytest.fixture
def place(open_dir: Path) -> Path:
    return open_dir


def test_drain_measures_the_service_a_bare_loop_and_plain_sql(place: Path) -> None:
    size = ("--jobs", "400", "--rounds", "1", "--processes", "2", "--concurrency", "5", "--prefetch", "15")
    done = bench("drain", "--json", *size, "--chart", str(place / "drain.svg"), tmp_path=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert found["bench"] == "drain"
    assert found["postgresql"]["fsync"] == found["postgresql"]["synchronous_commit"] == "on"
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["cpu"]
    assert found["settings"] == {"processes": 2, "concurrency": 5, "prefetch": 15, "jobs": 400}
    assert found["rounds"].keys() == {"service", "service, history", "bare", "plain SQL"}
    for name, rounds in found["rounds"].items():
        assert len(rounds) == 1
        for one in rounds:
            assert one["jobs"] == 400
            assert one["seconds"] > 0
            assert 50 < one["wal_bytes"] < one["wal_whole"]
            assert one["cpu_us"]["server"] >= 0, "ticks of 10 ms"
        rate = found["jobs_per_s"][name]
        assert 0 < rate["low"] <= rate["median"] <= rate["high"]
    for name in ("service", "service, history"):
        assert found["ratios"][name].keys() == {"bare", "plain SQL"}
        assert found["cpu_us_per_job"][name].keys() == {"workers", "parent", "server"}
    assert found["wal_bytes_per_job"]["service"] < found["wal_bytes_per_job"]["service, history"]
    assert {one["key"] for one in found["shown"]} == {"drain-bare", "cpu-workers", "cpu-server", "wal", "wal-history"}
    assert found["line"].startswith("drain: ")
    assert "x a bare asyncpg loop, " in found["line"]
    assert "(2 workers, no-op jobs, history on, up to 20 jobs a claim;" in found["line"]
    assert "jobs/s" in (place / "drain.svg").read_text()
    assert list(place.glob("bench-*")) == [], "its server's and services' files are gone"


def test_crash_measures_how_soon_a_killed_workers_jobs_are_queued_again(place: Path) -> None:
    done = bench("crash", "--json", "--kills", "4", "--processes", "2", "--concurrency", "4", tmp_path=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert len(found["rounds"]) == found["settings"]["kills"] == 4
    for figure in (found["requeued_s"], found["claiming_s"]):
        assert 0 < figure["low"] <= figure["median"] <= figure["p99"] <= figure["high"] < found["lease_s"]
    assert all(one["held"] >= 1 for one in found["rounds"])
    assert f"at a lease of {found['lease_s']:g} s" in found["line"]
    assert list(place.glob("bench-*")) == [], "its server's and services' files are gone"


def test_an_unknown_bench_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = bench("fly", tmp_path=tmp_path)
    assert done.returncode == 2
    assert "drain" in done.stderr


def test_outbox_measures_the_relay_and_a_bare_publisher(place: Path) -> None:
    size = ("--broker", "nats", "--events", "2000", "--rounds", "2", "--batch", "100", "--keys", "100")
    done = bench("outbox", "--json", *size, tmp_path=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    measured = found["brokers"]["nats"]
    assert len(measured["rounds"]) == 2
    for one in (measured, *measured["rounds"]):
        assert one["relay"] > 0
        assert one["bare"] > 0
    assert found["line"].startswith("outbox: nats ")
    assert "x a bare publisher (100 on their way, 200 B" in found["line"]
    assert list(place.glob("bench-*")) == [], "its servers' files are gone"
