"""Handlers that do to their process what no handler should, and what some library once did."""

import asyncio
import gc
import locale
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

from supervisor import Job, handler
from tests.support.handlers import record

MODULES: Final = "tests.support.handlers,tests.support.fault_handlers,tests.support.poison_handlers"

_kept: list[Any] = []


def _fork_child(seconds: float) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        time.sleep(seconds)  # with every descriptor of the worker
        os._exit(0)
    return pid


@handler("p.fork")
async def fork(job: Job, seconds: float) -> None:
    """Leave a child that holds all descriptors."""
    record(job, f"child {_fork_child(seconds)}")


@handler("p.fork_sync")
def fork_sync(job: Job, seconds: float) -> None:
    record(job, f"child {_fork_child(seconds)}")


@handler("p.fork_and_die")
async def fork_and_die(job: Job, seconds: float) -> None:
    record(job, f"child {_fork_child(seconds)}")
    os.kill(os.getpid(), signal.SIGKILL)


@handler("p.background")
def background(job: Job, seconds: float) -> None:
    """A grandchild whose parent is gone, with the log and everything else in its hands."""
    subprocess.run(["/bin/sh", "-c", f"sleep {seconds} &"], close_fds=False, check=True)
    record(job, "done")


@handler("p.zombies")
def zombies(job: Job, count: int) -> None:
    """Children that end and that nobody waits for."""
    for _ in range(count):
        _fork_child(0)
    _kept.append(subprocess.Popen(["/bin/true"]))
    record(job, "done")


@handler("p.signals")
async def signals(job: Job) -> None:
    """Take every signal for itself."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    record(job, "done")


@handler("p.sigchld")
async def sigchld(job: Job) -> None:
    """A handler of its own that takes away every child's exit code."""

    def take(*_: object) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    signal.signal(signal.SIGCHLD, take)
    subprocess.Popen(["/bin/true"])
    record(job, "done")


@handler("p.print")
def prints(job: Job, megabytes: int) -> None:
    line = "x" * 999 + "\n"
    for _ in range(megabytes * 500):
        sys.stdout.write(line)
        sys.stderr.write(line)
    for _ in range(megabytes * 4):
        os.write(1, line.encode() * 100)
        os.write(2, b"\xff\x00{" * 10_000)
    os.write(2, b"\n")
    record(job, "done")


@handler("p.threads")
async def threads(job: Job, count: int) -> None:
    """Threads that never end, none a daemon."""
    for _ in range(count):
        threading.Thread(target=threading.Event().wait).start()
    record(job, "done")


@handler("p.policy")
async def policy(job: Job) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        asyncio.set_event_loop(asyncio.new_event_loop())
    record(job, "done")


@handler("p.own_loop")
def own_loop(job: Job) -> None:
    """Run a loop of its own in a thread, and leave it closed."""
    asyncio.run(asyncio.sleep(0.01))
    asyncio.set_event_loop(asyncio.new_event_loop())
    record(job, "done")


@handler("p.stop_loop")
async def stop_loop(job: Job) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    record(job, "done")


@handler("p.close_loop")
async def close_loop(job: Job) -> None:
    asyncio.get_running_loop().close()


@handler("p.cancel_all")
async def cancel_all(job: Job) -> None:
    """As the end of many a script does."""
    record(job, "start")
    for one in asyncio.all_tasks():
        one.cancel()
    await asyncio.sleep(1)


@handler("p.cancel_for_ever")
async def cancel_for_ever(job: Job) -> None:
    """It does not let the worker leave either."""
    record(job, "start")
    while True:
        try:
            for one in asyncio.all_tasks():
                one.cancel()
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


class _Sore:
    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        raise RuntimeError("from __del__")


@handler("p.sore")
async def sore(job: Job) -> None:
    for _ in range(100):
        _Sore()
    gc.collect()
    record(job, "done")


@handler("p.elsewhere")
def elsewhere(job: Job) -> None:
    """Change all that belongs to the process."""
    record(job, "done")  # while it knows where
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
    os.umask(0o777)
    locale.setlocale(locale.LC_ALL, "C")
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()
    os.environ["HOME"] = "/nonexistent"
    os.nice(1)


@handler("p.recurse")
async def recurse(job: Job) -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    deeper(0)


@handler("p.no_memory")
def no_memory(job: Job) -> None:
    """Ask for more than it allowed itself."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20), before[1]))
    try:
        _kept.append(bytearray(1 << 30))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@handler("p.leak_descriptors")
def leak_descriptors(job: Job, limit: int = 200) -> None:
    """Open until there are no more, and keep them."""
    record(job, "start")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    while True:
        _kept.append(open(os.devnull, encoding="ascii"))  # noqa: SIM115 - that is the point


@handler("p.close_descriptors")
async def close_descriptors(job: Job, first: int, last: int) -> None:
    record(job, "start")
    os.closerange(first, last + 1)
    await asyncio.sleep(0.1)


@handler("p.close_descriptors_sync")
def close_descriptors_sync(job: Job, first: int, last: int) -> None:
    record(job, "start")
    os.closerange(first, last + 1)
    time.sleep(0.1)


class _Long(Exception):
    def __init__(self, make: Callable[[], str]) -> None:
        super().__init__(make)
        self.make = make

    def __str__(self) -> str:
        return self.make()


@handler("p.long_error")
async def long_error(job: Job, megabytes: int) -> None:
    """A long text, with what a database does not take, and a cause as long."""
    text = "é\x00\ud800\U0001f600x" * (megabytes * 200_000)
    try:
        raise _Long(lambda: text)
    except _Long as error:
        raise RuntimeError(text) from error


@handler("p.anything")
async def anything(job: Job, value: Any) -> None:
    record(job, "done")
