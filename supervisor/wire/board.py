"""The scoreboard: one page of shared memory per worker, which outlives the worker.

The worker writes what it does; the parent reads it, at last after the worker
died, to tell the job that killed it from the jobs it merely held. The parent
writes two words, the lease and a flag, on a line of its own.

    parent: Board.create --as a Process argument--> worker
    worker: claim -> start -> return_ -> free        one entry per job
            claim -------------------> free          released unstarted
    parent: read() now and then; read() once more when the worker is dead

Always true: one writer per entry at a time; an entry's job is not on any other
entry; the memory can be neither shrunk nor grown, so reading cannot fault, and
whatever a handler scribbles on it reads as nonsense but not as an exception.

Elsewhere: the layout, the order of writes, and decoding (page.py); what the parent makes of a dead worker's
entries (parent/recover.py).
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import context, reduction
from typing import Any, Final

from supervisor.clock import monotonic_ns
from supervisor.wire.page import (
    BUSY,
    CLAIM,
    COUNTED,
    ENDED,
    ENTRY,
    ERROR_BYTES,
    EVENT_INDEX,
    FAULT,
    FLAGS,
    HEADER,
    KIND_BYTES,
    LEASE,
    MAGIC,
    NEXT,
    PID,
    RETURN,
    RSS,
    RUNNING,
    SESSION,
    START,
    STATE,
    TICK,
    TOP,
    Entry,
    Phase,
    Snapshot,
    WorkerState,
    cut,
    decode,
)

__all__ = ["Board", "BoardFull", "Entry", "Phase", "Snapshot", "WorkerState"]

_NAN: Final = math.nan
_HELD: Final = re.compile(rb"[^\0]")  # most entries are free, and looked at many times a second
_NO_REASON: Final = bytes(8)


class BoardFull(RuntimeError):
    """More jobs held than the board has entries: a miscount in the worker."""


class Board:
    """One worker's page; its layout is that of page.py.

    Worker's side: `claim`, `start`, `return_`, `free`, `tick`, `set_header`, `fault_fd`, and reading
    `lease_until_ns`, `flags`.
    Parent's side: `create`, `read`, `overdue`, `mark_killed`, `set_lease_until`, `set_flags`, `fault`.
    """

    def __init__(self, fd: int, entries: int) -> None:
        self.entries = entries
        self._fd = fd
        self._map = mmap.mmap(fd, HEADER + entries * ENTRY + FAULT)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self._signed = self._bytes.cast("q")
        self._phases = self._bytes[HEADER + 8 : HEADER + entries * ENTRY : ENTRY]
        # Lowest entries first, so that the pages in use stay few.
        self._free: deque[int] = deque(range(entries))
        self._sequence = [0] * entries
        self._kinds: dict[str, tuple[bytes, int]] = {}

    @classmethod
    def create(cls, entries: int) -> Board:
        """A page of *entries* entries, empty; the parent's end. At least concurrency + prefetch + max_unacked."""
        if not 1 <= entries <= 1_000_000:
            raise ValueError(f"a board has 1 to 1,000,000 entries, not {entries}")
        size = HEADER + entries * ENTRY + FAULT
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("supervisor-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            # A handler that truncates the file must not make the parent's next read a SIGBUS.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
            os.ftruncate(fd, size)
        board = cls(fd, entries)
        TOP.pack_into(board._map, 0, MAGIC, entries)
        return board

    def __reduce__(self) -> tuple[Callable[[Any, int], Board], tuple[Any, int]]:
        if context.get_spawning_popen() is None:
            raise TypeError("a board can be passed to a process only as an argument of it")
        return _open_in_child, (reduction.DupFd(self._fd), self.entries)

    def close_fd(self) -> None:
        """After the spawn the descriptor is needed no more; the memory stays mapped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self.close_fd()
        for view in (self._phases, self._words, self._signed, self._bytes):
            view.release()
        self._map.close()

    # -- The worker's side ------------------------------------------------------------------

    def claim(self, job_id: int, token: int, kind: str, *, suspect: bool = False, queue: int = 0) -> int:
        """Note a job that was claimed; returns its entry, for the other calls."""
        try:
            index = self._free.popleft()
        except IndexError:
            raise BoardFull(f"all {self.entries} entries of the board hold jobs") from None
        text, length = self._kinds.get(kind) or self._cut_kind(kind)
        offset = HEADER + index * ENTRY
        word = offset >> 3
        sequence = self._sequence[index] + 2
        self._words[word] = sequence - 1
        now = monotonic_ns()
        CLAIM.pack_into(self._map, offset + 16, job_id, token, now, 0, 0, _NAN, 0, 0, suspect, length, queue, text)
        self._phases[index] = 1
        self._words[word] = self._sequence[index] = sequence
        return index

    def start(self, index: int, deadline_ns: int = 0) -> None:
        """The handler is about to run. *deadline_ns*: when the parent is to kill this worker, 0 for never."""
        offset = HEADER + index * ENTRY
        word = offset >> 3
        sequence = self._sequence[index] + 2
        self._words[word] = sequence - 1
        START.pack_into(self._map, offset + 40, monotonic_ns(), deadline_ns)
        self._phases[index] = 2
        self._words[word] = self._sequence[index] = sequence

    def return_(
        self,
        index: int,
        event: str,
        error: str | None = None,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """The handler is through, with a word of EVENTS; the result is not in the database yet."""
        offset = HEADER + index * ENTRY
        word = offset >> 3
        sequence = self._sequence[index] + 2
        code, length = EVENT_INDEX[event], 0
        self._words[word] = sequence - 1
        if error:
            text = cut(error, ERROR_BYTES)
            length = len(text)
            self._bytes[offset + 120 : offset + 120 + length] = text
        self._bytes[offset + 248 : offset + 256] = cut(reason, 8).ljust(8, b"\0") if reason else _NO_REASON
        RETURN.pack_into(self._map, offset + 56, _NAN if delay is None else delay, code, length)
        self._phases[index] = 3
        self._words[word] = self._sequence[index] = sequence

    def free(self, index: int) -> None:
        """The job is settled or released: it is no longer this worker's."""
        word = (HEADER + index * ENTRY) >> 3
        sequence = self._sequence[index] + 2
        self._words[word] = sequence - 1
        self._phases[index] = 0
        self._words[word] = self._sequence[index] = sequence
        self._free.appendleft(index)

    @property
    def room(self) -> int:
        """Entries that are free."""
        return len(self._free)

    def tick(self) -> None:
        """The worker's loop turns."""
        self._words[TICK] = monotonic_ns()

    def set_header(
        self,
        *,
        pid: int | None = None,
        session: int | None = None,
        state: WorkerState | None = None,
        busy: int | None = None,
        running: int | None = None,
        next_session: int | None = None,
        ended: int | None = None,
        rss: int | None = None,
        counted: int | None = None,
    ) -> None:
        if pid is not None:
            self._words[PID] = pid
        if session is not None:
            self._signed[SESSION] = session
        if state is not None:
            self._words[STATE] = state
        if busy is not None:
            self._words[BUSY] = busy
        if running is not None:
            self._words[RUNNING] = running
        if next_session is not None:
            self._signed[NEXT] = next_session
        if ended is not None:
            self._words[ENDED] = ended
        if rss is not None:
            self._words[RSS] = rss
        if counted is not None:
            self._words[COUNTED] = counted

    def fault_fd(self) -> int:
        """A descriptor to which a fatal error may write its last words: they are found here by `fault`."""
        os.lseek(self._fd, HEADER + self.entries * ENTRY, os.SEEK_SET)
        return self._fd

    @property
    def lease_until_ns(self) -> int:
        """Until when the parent has renewed this worker's lease; 0 before the first time."""
        return self._words[LEASE]

    @property
    def flags(self) -> int:
        return self._words[FLAGS]

    # -- The parent's side ------------------------------------------------------------------

    def set_lease_until(self, monotonic_ns: int) -> None:
        self._words[LEASE] = monotonic_ns

    def set_flags(self, flags: int) -> None:
        """Bits the worker looks at; their meaning is the parent's and the worker's business."""
        self._words[FLAGS] = flags

    def mark_killed(self, index: int, *, cancelled: bool = False) -> None:
        """Just before the parent kills the worker for this entry's deadline, or since it was *cancelled*."""
        self._bytes[HEADER + index * ENTRY + 9] = 2 if cancelled else 1

    def read(self) -> Snapshot:
        """What the worker does now, or did last. Each entry is consistent in itself; see `Entry.torn`."""
        return self._snapshot([entry for index in self.held() if (entry := self._entry(index)) is not None])

    def read_header(self) -> Snapshot:
        """The same without entries: a look that costs little however much the worker holds."""
        return self._snapshot([])

    def _snapshot(self, entries: list[Entry]) -> Snapshot:
        words = self._words
        state = words[STATE]
        return Snapshot(
            pid=words[PID],
            session=self._signed[SESSION],
            tick_ns=words[TICK],
            state=WorkerState(state) if state <= WorkerState.DRAINED else WorkerState.STARTING,
            busy=words[BUSY],
            running=words[RUNNING],
            next_session=self._signed[NEXT],
            ended=words[ENDED],
            rss=words[RSS],
            entries=entries,
            counted=words[COUNTED],
        )

    @property
    def running(self) -> int:
        """Jobs that run, as of the worker's last tick."""
        return self._words[RUNNING]

    def fault(self) -> str:
        """What the interpreter said when it died; empty if it said nothing."""
        words = self._bytes[HEADER + self.entries * ENTRY :].tobytes().partition(b"\0")[0]
        return words.decode("utf-8", "replace").strip()

    def held(self) -> list[int]:
        """The entries that hold jobs: one look over all, for several questions."""
        return [found.start() for found in _HELD.finditer(self._phases.tobytes())]

    def overdue(self, now_ns: int, held: Sequence[int] | None = None) -> list[Entry]:
        """Started jobs, of *held* or of all, whose deadline has passed: the cheap look that the parent takes often."""
        words = self._words
        found = []
        for index in self.held() if held is None else held:
            deadline = words[(HEADER + index * ENTRY + 48) >> 3]
            if 0 < deadline <= now_ns:
                entry = self._entry(index)
                if entry and not entry.torn and entry.phase is Phase.STARTED and 0 < entry.deadline_ns <= now_ns:
                    found.append(entry)
        return found

    def crowd(self, held: Sequence[int]) -> tuple[int, int, int]:
        """Of *held*: jobs claimed and not started, jobs started, and when the last of these was."""
        words = self._words
        claimed, newest, started = 0, 0, 0
        for index in held:
            phase = self._phases[index]
            claimed += phase == Phase.CLAIMED
            if phase == Phase.STARTED:
                started += 1
                newest = max(newest, words[(HEADER + index * ENTRY + 40) >> 3])
        return claimed, started, newest

    def _entry(self, index: int) -> Entry | None:
        start = HEADER + index * ENTRY
        last = b""
        for _ in range(8):
            copy = bytes(self._bytes[start : start + ENTRY])
            if not copy[0] & 1 and copy == last:
                return decode(index, copy, torn=False)
            last = copy
        return decode(index, last, torn=True)

    def _cut_kind(self, kind: str) -> tuple[bytes, int]:
        text = cut(kind, KIND_BYTES)
        if len(self._kinds) < 1_000:  # kinds nobody has a handler for may be many
            self._kinds[kind] = (text, len(text))
        return text, len(text)


def _open_in_child(dup: Any, entries: int) -> Board:
    return Board(dup.detach(), entries)
