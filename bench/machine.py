"""What the figures were measured on, and what the processor was spent on."""

import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def facts(directory: Path) -> dict[str, Any]:
    """The machine, and the disk under *directory*."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
        "fdatasync_ms": round(_fdatasync_ms(directory), 2),
    }


def written(found: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, {found['kernel']}, "
        f"Python {found['python']}, fdatasync {found['fdatasync_ms']} ms, load {found['load_1min']} at the start"
    )


def cpu_s(pid: int) -> float:
    """Processor time of *pid* and of its children that have ended; 0 if there is no such process."""
    words = _stat(pid)
    return sum(map(int, words[11:15])) * _TICK_S if words else 0.0


def running_ns(pid: int) -> int:
    """How long *pid* has been on a processor, by the scheduler's own clock: cpu_s counts whole ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def children(pid: int) -> list[int]:
    """The living children of *pid*."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [child for child in pids if (words := _stat(child)) and int(words[1]) == pid]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _fdatasync_ms(directory: Path, rounds: int = 30) -> float:
    """What it costs here to make 8 KiB durable: the floor under every commit."""
    file = directory / "fdatasync"
    took = []
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(8192), 0)
        os.fdatasync(fd)
        for _ in range(rounds):
            began = time.perf_counter()
            os.pwrite(fd, bytes(8192), 0)
            os.fdatasync(fd)
            took.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        file.unlink()
    return statistics.median(took) * 1000
