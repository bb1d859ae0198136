"""A peer's processes as the bench sees them."""

import json
import subprocess
import threading
import time
from types import TracebackType
from typing import IO, Any, Final, Self

from bench import machine
from bench.peers.env import ROOT, Installed

_READY_S: Final = 60.0
_COMMAND_S: Final = 300.0


def tell(peer: Installed, command: str, url: str, *words: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run one of a peer's commands to its end; what it answered.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [*peer.command, command, url, *map(str, words)],
        cwd=ROOT, env=peer.env | (env or {}), capture_output=True, text=True, timeout=_COMMAND_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{peer.peer.name} {command} failed: {(done.stderr or done.stdout).strip()[-1500:]}")
    for line in reversed(done.stdout.splitlines()):
        if (found := _object(line)) is not None:
            return found
    return {}


class Crew:
    """Workers of a peer: ready inside the block, at work from `go()` on, killed at its end."""

    def __init__(self, peer: Installed, url: str, *, processes: int, concurrency: int, mode: str) -> None:
        self._peer = peer
        self._command = [*peer.command, "work", url, str(concurrency), mode]
        self._count = processes
        self._processes: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._told: dict[int, dict[str, int]] = {}
        self._seen: dict[int, int] = {}
        self._ready = 0
        self._said: list[str] = []

    def __enter__(self) -> Self:
        try:
            for number in range(self._count):
                process = subprocess.Popen(
                    self._command, cwd=ROOT, env=self._peer.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
                self._processes.append(process)
                assert process.stdout is not None
                assert process.stderr is not None
                threading.Thread(target=self._read, args=(number, process.stdout), daemon=True).start()
                threading.Thread(target=self._keep, args=(process.stderr,), daemon=True).start()
            self._wait(lambda: self._ready == self._count, _READY_S, "be ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def go(self) -> None:
        """Let all begin."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def drained(self, count: int, deadline_s: float) -> float:
        """Wait until so many jobs were run; seconds from the first one's start to the last one's."""
        self._wait(lambda: sum(one["done"] for one in self._told.values()) >= count, deadline_s, f"run {count} jobs")
        with self._lock:
            first = min(one["first"] for one in self._told.values())
            last = max(one["last"] for one in self._told.values())
        return (last - first) / 1e9

    def done(self) -> int:
        """Jobs run so far, as far as told."""
        with self._lock:
            return sum(one["done"] for one in self._told.values())

    def seen(self, count: int, deadline_s: float) -> dict[int, int]:
        """Wait until so many jobs were started; when each was, in nanoseconds."""
        self._wait(lambda: len(self._seen) >= count, deadline_s, f"start {count} jobs")
        with self._lock:
            return dict(self._seen)

    def cpu_s(self) -> float:
        """Processor time of its processes so far."""
        return sum(machine.cpu_s(process.pid) for process in self._processes)

    def _wait(self, fact: Any, deadline_s: float, what: str) -> None:
        deadline = time.monotonic() + deadline_s
        while True:
            with self._lock:
                if fact():
                    return
            ended = [process.returncode for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"exited with {ended[0]}" if ended else f"did not within {deadline_s:g} s"
                raise RuntimeError(f"{self._peer.peer.name} should {what} and {why}: {''.join(self._said)[-1500:]}")
            time.sleep(0.01)

    def _read(self, number: int, stream: IO[str]) -> None:
        for line in stream:
            found = _object(line)
            with self._lock:
                if found is None:
                    self._said.append(line)
                elif "ready" in found:
                    self._ready += 1
                elif "n" in found:
                    self._seen[found["n"]] = found["at"]
                else:
                    self._told[number] = found

    def _keep(self, stream: IO[str]) -> None:
        for line in stream:
            with self._lock:
                self._said.append(line)
                del self._said[:-50]

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(10)


def _object(line: str) -> dict[str, Any] | None:
    """A line of JSON; None for anything else a library may print."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
