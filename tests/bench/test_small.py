"""Every bench runs to its end at a tiny size, and what it says hangs together; how fast anything is, is not judged."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.suite import BEGIN, END

ROOT = Path(__file__).parents[2]

# The bench, its size, and what it promises to show.
SMALL: dict[str, tuple[str, set[str] | None]] = {
    "latency": ("--jobs 20 --rounds 1 --processes 1", {"latency-bare"}),
    "enqueue": (
        "--singles 20 --bulk 500 --rounds 1 --writers 1,2 --seconds 1",
        {"enqueue-writers", "enqueue-copy"},
    ),
    "pinned": ("--jobs 3000 --probes 20 --processes 1", {"pinned-ratio", "pinned-rate", "pinned-p99"}),
    "backlog": ("--backlog 3000,4000 --jobs 1000 --rounds 1 --processes 1", {"backlog-3000", "backlog-4000"}),
    "history": ("--rows 3000 --jobs 1000 --rounds 1 --processes 1", {"history"}),
    "lanes": ("--queues 1,5 --priorities 3 --jobs 1000 --rounds 1 --processes 1", {"lanes"}),
    "scale": ("--workers 1,2 --jobs 1000 --rounds 1", set()),
    "blocked": ("--blocked 300 --claims 20 --rounds 1", None),
    "idle": ("--seconds 2 --settle 1 --processes 1", {"idle-queries", "idle-cpu", "idle-connections"}),
    "sustained": (
        "--minutes 0.1 --partitions 2 --processes 1",
        {"sustained-rate", "sustained-hot", "sustained-growth", "sustained-vacuum", "sustained-pause"},
    ),
    "memory": ("--jobs 400 --steps 2 --processes 1", {"memory", "memory-growth"}),
    "lab": ("--rounds 1 --processes 2", {"lab"}),
    "shutdown": ("--rounds 1 --processes 1", {"shutdown"}),
}


@pytest.fixture
def place(open_dir: Path) -> Path:
    return open_dir


def bench(name: str, size: str, place: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench", name, "--json", *size.split(), "--chart", str(place / "chart.svg")],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(place)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", SMALL)
def test_a_bench_runs_to_its_end(name: str, place: Path) -> None:
    size, keys = SMALL[name]
    found = bench(name, size, place)

    assert found["bench"] == name
    assert found["line"].lower().startswith(f"{name}: ")
    assert found["machine"]["cores"] >= 1
    if keys is not None:
        assert {one["key"] for one in found["shown"]} == keys
    for one in found["shown"]:
        assert one["wanted"]
        assert any(letter.isdigit() for letter in one["measured"])
        assert isinstance(one["reached"], bool)
    assert list(place.glob("bench-*")) == [], "its server's and services' files are gone"


def test_every_bench_has_a_test() -> None:
    from bench.__main__ import BENCHES

    assert BENCHES.keys() == SMALL.keys() | {"drain", "crash", "outbox"}, "those three: tests/e2e/test_bench.py"


def test_the_suite_makes_the_page_of_what_it_measured(place: Path) -> None:
    page, readme = place / "page.md", place / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold figures\n{END}\nafter\n")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "all", "--small", "--only", "lab,shutdown", "--peers", "none",
         "--out", str(page), "--readme", str(readme), "--figures", str(place / "figures.json")],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(place)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text()
    assert "{{" not in text
    assert "| lab of 500 jobs, one sleeps 900 ms: median" in text
    assert "## shutdown" in text
    found = json.loads((place / "figures.json").read_text())
    assert found["figures"].keys() == {"lab", "shutdown"}
    assert found["failed"] == {}
    short = readme.read_text()
    assert short.startswith(f"before\n{BEGIN}\n* **lab**: ")
    assert short.endswith(f" `python -m bench shutdown`\n{END}\nafter\n")
    assert "old figures" not in short
    assert "cores shared" not in short


def test_a_bench_that_is_told_to_stop_leaves_nothing(place: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "bench", "idle", "--seconds", "90"],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(place)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert running.stdout is not None
    with running, running.stdout as said:
        assert any(line.startswith("PostgreSQL ") for line in said), "its server runs"
        assert list(place.glob("bench-pg-*")) != []
        running.terminate()
        running.wait(60)
    assert running.returncode != 0
    assert list(place.glob("bench-*")) == []
