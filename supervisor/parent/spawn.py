"""Forks workers, though not from this process.

A process with an event loop, sockets, TLS sessions and threads cannot be forked safely. Python's fork
server is a clean, single-threaded process that has imported the worker's code and the handlers; each
worker is a real fork of it, in about ten milliseconds, shares that memory copy-on-write, and inherits
no descriptor of the parent's but its own socket and board.

    parent --request--> fork server --fork--> worker
       ^                     |
       '---- exit code ------'       by the sentinel; by the pidfd if the fork server itself is dead

Always true: forking happens in a thread with a time limit, so a fork server that is stopped or swapped
out cannot stop the parent's loop. A worker's death is seen through its pidfd even when the fork server
is gone; its exit code may then be unknown.

Elsewhere: what is imported (worker/preload.py); what a worker does (worker/main.py).
"""

import asyncio
import contextlib
import ctypes
import json
import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from typing import Any, Final

from supervisor.log import get_logger
from supervisor.wire.board import Board
from supervisor.wire.channel import open_pair
from supervisor.worker.main import WorkerConfig, run_worker
from supervisor.worker.preload_names import LIBRARIES_VARIABLE, METRICS_VARIABLE, MODULES_VARIABLE, PATH_VARIABLE

SPAWN_TIMEOUT_S: Final = 10.0
FIRST_TIMEOUT_S: Final = 120.0
_CODE_PATIENCE_S: Final = 0.5
_PR_SET_CHILD_SUBREAPER: Final = 36

log = get_logger("spawn")


class SpawnFailed(Exception):
    """No worker could be forked; the text says why."""


class Spawned:
    """A forked worker: its pid, the parent's ends of its socket and board, and word of its end."""

    def __init__(self, process: Any, pidfd: int, sock: socket.socket, board: Board) -> None:
        self.pid: int = process.pid
        self.sock = sock
        self.board = board
        self._process = process
        self._pidfd = pidfd
        self._watched = False
        self._patience: asyncio.TimerHandle | None = None

    def watch(self, on_exit: Callable[[int | None], None]) -> None:
        """Call *on_exit* once, with the exit code (negative: signal; None: unknown), when the process is gone."""
        loop = asyncio.get_running_loop()
        sentinel: int = self._process.sentinel
        self._watched = True

        def gone() -> None:
            loop.remove_reader(self._pidfd)
            # The fork server reaps it and writes the code; wait for that, but not for ever.
            timer = loop.call_later(_CODE_PATIENCE_S, told)
            loop.add_reader(sentinel, told)
            self._patience = timer

        def told() -> None:
            loop.remove_reader(sentinel)
            if self._watched:
                self._watched = False
                if self._patience is not None:
                    self._patience.cancel()
                on_exit(self._exit_code())

        loop.add_reader(self._pidfd, gone)

    def _exit_code(self) -> int | None:
        code: int | None = self._process.exitcode  # never blocks: the sentinel has it, or end of file
        if code is not None and code != 255:
            return code
        # 255 is what an end of file reads as: the fork server is dead. Its orphans are ours to reap.
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                return os.waitstatus_to_exitcode(status)
        return code

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process is gone."""
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Give back the descriptors, once the process is gone."""
        self.board.close()
        with contextlib.suppress(OSError):
            os.close(self._pidfd)
        with contextlib.suppress(ValueError):
            self._process.close()


class ForkServer:
    """Starts workers. One per parent.

    Args:
        libraries: Modules that workers need beside the handlers, imported once for all of them, if they are there.
    """

    def __init__(self, handlers: tuple[str, ...], metrics_dir: str, libraries: tuple[str, ...] = ()) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["supervisor.worker.preload"])
        self._environment = {
            LIBRARIES_VARIABLE: json.dumps(libraries),
            METRICS_VARIABLE: metrics_dir,
            MODULES_VARIABLE: json.dumps(handlers),
            PATH_VARIABLE: os.environ.get("PYTHONPATH", ""),
            # The fork server's interpreter starts anew: it is to find what this one finds.
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        }
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")
        self._proven: int | None = None  # the fork server that has forked before
        become_subreaper()

    async def spawn(self, config: WorkerConfig, entries: int) -> Spawned:
        """Fork a worker.

        Raises:
            SpawnFailed: the fork server did not do it within SPAWN_TIMEOUT_S, the first time FIRST_TIMEOUT_S.
        """
        async with self._turn:  # the time limit is one spawn's, not that of those before it
            # A fork server that has not forked yet may still be importing handlers, which may take long.
            patience = SPAWN_TIMEOUT_S if self.pid is not None and self.pid == self._proven else FIRST_TIMEOUT_S
            forked = asyncio.get_running_loop().run_in_executor(self._thread, self._spawn, config, entries)
            try:
                async with asyncio.timeout(patience):
                    spawned = await asyncio.shield(forked)
            except TimeoutError as error:
                # The thread hangs with the fork server: end that, the next spawn starts a new one.
                forked.add_done_callback(_discard)
                self.kill()
                raise SpawnFailed(f"the fork server did not answer within {patience:g} s") from error
            except asyncio.CancelledError:
                forked.add_done_callback(_discard)
                raise
            except Exception as error:
                raise SpawnFailed(f"the fork server failed: {error!r}") from error
            self._proven = self.pid
            return spawned

    def _spawn(self, config: WorkerConfig, entries: int) -> Spawned:
        board = Board.create(entries)
        ours, theirs = open_pair()
        try:
            with _no_main_module():
                process = self._context.Process(
                    target=run_worker, args=(config, theirs, board), name=f"worker-{config.slot}"
                )
                with _environment(self._environment):
                    forkserver.ensure_running()
                process.start()
            # Its end is ours to watch: multiprocessing would take the exit codes of the registered ones,
            # from this thread, at the next start.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
            pid = process.pid
            assert pid is not None
            pidfd = os.pidfd_open(pid)
        except BaseException:
            ours.close()
            board.close()
            raise
        finally:
            theirs.close()
        board.close_fd()
        return Spawned(process, pidfd, ours, board)

    @property
    def pid(self) -> int | None:
        """The fork server's pid, while there is one."""
        return getattr(forkserver._forkserver, "_forkserver_pid", None)

    def kill(self) -> None:
        """End a fork server that does not answer; workers live on, the next spawn starts another."""
        log.error("fork_server.killed", pid=self.pid, reason="it did not answer")
        self.end()

    def end(self) -> None:
        """End the fork server, if there is one. It is a child of this process, so its pid cannot be another's."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _discard(forked: asyncio.Future[Spawned]) -> None:
    """End a worker that was forked after all, when nobody waits for it any more."""
    if not forked.cancelled() and forked.exception() is None:
        spawned = forked.result()
        spawned.signal(signal.SIGKILL)
        spawned.sock.close()
        spawned.close()


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """These variables for a process started meanwhile; worker/preload.py takes them out again there."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide this process's main module while a child is described.

    multiprocessing would import it again in every worker (the command line with all it needs), to make
    functions defined there known. The target lives in a proper module.
    """
    main = sys.modules["__main__"]
    blank = types.ModuleType("__main__")
    blank.__spec__ = None
    sys.modules["__main__"] = blank
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def become_subreaper() -> None:
    """Adopt orphaned descendants (Linux): workers whose fork server died, grandchildren that handlers left."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_strangers(known: set[int]) -> int:
    """Reap adopted processes that have ended, except *known* pids, whose owners want their status; how many."""
    reaped = 0
    for pid in _zombie_children():
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    reaped += 1
    return reaped


def _zombie_children() -> list[int]:
    found = []
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = file.read().split()
    except OSError:
        return []
    for child in children:
        try:
            with open(f"/proc/{child}/stat", encoding="utf-8", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            found.append(int(child))
    return found
