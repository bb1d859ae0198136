"""The scoreboard: one page of shared memory per worker, which outlives the worker.

The worker writes what it does; the parent reads it, at last after the worker
died, to tell the job that killed it from the jobs it merely held. The parent
writes two words, the lease and a flag, on a line of its own.

    parent: Board.create --as a Process argument--> worker
    worker: claim -> start -> return_ -> free        one entry per job
            claim -------------------> free          released unstarted
    parent: read() now and then; read() once more when the worker is dead

Layout, little endian, offsets in bytes:

    0     <4sIQQ  magic "BRD1", entries; lease_until (monotonic ns); flags    line of the parent
    64    <QqQQQQqQQQ  pid, session, tick (monotonic ns), state, busy,         lines of the worker
                  running, next session (0: none), jobs ended, rss (bytes), runs counted
    256   entries of 256 bytes:
       0  <Q  sequence: odd while the entry is being written
       8  B   phase: 0 free, 1 claimed, 2 started, 3 returned
       9  B   killed: 1 if the parent killed the worker for this job's deadline (the parent's byte)
      16  <qqQ  job id, token, claimed (monotonic ns)
      40  <QQ   started, deadline (monotonic ns; deadline 0: none)
      56  <dBB  delay (seconds; NaN: none), event (index in EVENTS), length of error
      66  <BBH  flags (1: suspect), length of kind, queue (its place among the known ones from 1; 0: another)
      72  48 bytes   kind, UTF-8
     120  128 bytes  error, UTF-8
     248  8 bytes    reason, ASCII, NUL padded
    and last, after the entries:
       0  16 KiB     what the interpreter says of a fatal error (faulthandler), NUL padded: written to
                     this memory, since the log's pipe may be full and would hold up the death

Writing order, which a death can cut anywhere: sequence odd, fields, *then* the
phase in one byte, sequence even. A move back to free or on to a later phase so
takes effect at once or not at all. Of a dead writer an odd sequence with phase
claimed or started is that phase, the later one had not begun; with phase returned
the result is whole. Sequence, phase and the header words are single aligned stores.

Python has no memory fences. On x86 stores become visible in order; elsewhere a
reader of a *living* writer could see a few out of order, so `read` takes an entry
only if two copies with an interpreter round between them agree. A dead writer's
stores are all visible.

Always true: one writer per entry at a time; an entry's job is not on any other
entry; the memory can be neither shrunk nor grown, so reading cannot fault, and
whatever a handler scribbles on it reads as nonsense but not as an exception.

Elsewhere: what the parent makes of a dead worker's entries (parent).
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing import context, reduction
from typing import Any, Final

from supervisor.clock import monotonic_ns

MAGIC: Final = b"BRD1"
HEADER: Final = 256
ENTRY: Final = 256
KIND_BYTES: Final = 48
ERROR_BYTES: Final = 128
FAULT: Final = 16 * 1024
# The words of the function `settle`, by their index; 0 is none yet.
EVENTS: Final = (
    "", "done", "failed", "dead", "snoozed", "released", "interrupted", "crashed", "suspect", "unknown",
)  # fmt: skip
SUSPECT: Final = 1

_EVENT_INDEX: Final = {event: index for index, event in enumerate(EVENTS)}
_TOP = struct.Struct("<4sI")
_CLAIM = struct.Struct("<qqQQQdBBBBH2x48s")  # from 16: all fields but sequence and phase
_START = struct.Struct("<QQ")  # from 40
_RETURN = struct.Struct("<dBB")  # from 56
_WHOLE = struct.Struct("<QBB6xqqQQQdBBBBH2x48s128s8s")
assert _WHOLE.size == ENTRY

# Header words as indices of 8 bytes.
_LEASE, _FLAGS = 1, 2
_PID, _SESSION, _TICK, _STATE, _BUSY, _RUNNING, _NEXT, _ENDED, _RSS, _COUNTED = 8, 9, 10, 11, 12, 13, 14, 15, 16, 17
_NAN = math.nan
_NO_REASON = bytes(8)


class Phase(IntEnum):
    FREE = 0
    CLAIMED = 1
    STARTED = 2
    RETURNED = 3


class WorkerState(IntEnum):
    STARTING = 0
    READY = 1
    DRAINING = 2
    DRAINED = 3


class BoardFull(RuntimeError):
    """More jobs held than the board has entries: a miscount in the worker."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One job a worker holds. Times are monotonic nanoseconds, 0 where there is none."""

    index: int
    job_id: int
    token: int
    phase: Phase
    kind: str  # cut at 48 bytes
    suspect: bool
    claimed_ns: int
    started_ns: int
    deadline_ns: int  # when the parent is to kill the worker
    event: str  # "" until returned
    delay: float | None
    error: str | None  # cut at 128 bytes
    reason: str | None  # cut at 8 bytes
    killed: bool  # the parent killed the worker for this job's deadline
    torn: bool  # caught in a write: final for a dead worker; of a living one, read again before acting on it
    queue: int = 0  # its place among the queues that Ready named, from 1; 0: another


@dataclass(frozen=True, slots=True)
class Snapshot:
    pid: int
    session: int
    tick_ns: int  # when the worker's loop last turned
    state: WorkerState
    busy: int  # executor threads in use
    running: int
    next_session: int  # the one it is about to move to; its jobs may be under either
    ended: int  # jobs ended since its start
    rss: int  # bytes, as of its last tick
    entries: list[Entry]
    counted: int = 0  # runs that are in the metrics and on the board no more


class Board:
    """One worker's page; see the module's text for the layout.

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
        _TOP.pack_into(board._map, 0, MAGIC, entries)
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
        _CLAIM.pack_into(self._map, offset + 16, job_id, token, now, 0, 0, _NAN, 0, 0, suspect, length, queue, text)
        self._phases[index] = 1
        self._words[word] = self._sequence[index] = sequence
        return index

    def start(self, index: int, deadline_ns: int = 0) -> None:
        """The handler is about to run. *deadline_ns*: when the parent is to kill this worker, 0 for never."""
        offset = HEADER + index * ENTRY
        word = offset >> 3
        sequence = self._sequence[index] + 2
        self._words[word] = sequence - 1
        _START.pack_into(self._map, offset + 40, monotonic_ns(), deadline_ns)
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
        code, length = _EVENT_INDEX[event], 0
        self._words[word] = sequence - 1
        if error:
            text = _cut(error, ERROR_BYTES)
            length = len(text)
            self._bytes[offset + 120 : offset + 120 + length] = text
        self._bytes[offset + 248 : offset + 256] = _cut(reason, 8).ljust(8, b"\0") if reason else _NO_REASON
        _RETURN.pack_into(self._map, offset + 56, _NAN if delay is None else delay, code, length)
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
        self._words[_TICK] = monotonic_ns()

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
            self._words[_PID] = pid
        if session is not None:
            self._signed[_SESSION] = session
        if state is not None:
            self._words[_STATE] = state
        if busy is not None:
            self._words[_BUSY] = busy
        if running is not None:
            self._words[_RUNNING] = running
        if next_session is not None:
            self._signed[_NEXT] = next_session
        if ended is not None:
            self._words[_ENDED] = ended
        if rss is not None:
            self._words[_RSS] = rss
        if counted is not None:
            self._words[_COUNTED] = counted

    def fault_fd(self) -> int:
        """A descriptor to which a fatal error may write its last words: they are found here by `fault`."""
        os.lseek(self._fd, HEADER + self.entries * ENTRY, os.SEEK_SET)
        return self._fd

    @property
    def lease_until_ns(self) -> int:
        """Until when the parent has renewed this worker's lease; 0 before the first time."""
        return self._words[_LEASE]

    @property
    def flags(self) -> int:
        return self._words[_FLAGS]

    # -- The parent's side ------------------------------------------------------------------

    def set_lease_until(self, monotonic_ns: int) -> None:
        self._words[_LEASE] = monotonic_ns

    def set_flags(self, flags: int) -> None:
        """Bits the worker looks at; their meaning is the parent's and the worker's business."""
        self._words[_FLAGS] = flags

    def mark_killed(self, index: int) -> None:
        """Just before the parent kills the worker for this entry's deadline."""
        self._bytes[HEADER + index * ENTRY + 9] = 1

    def read(self) -> Snapshot:
        """What the worker does now, or did last. Each entry is consistent in itself; see `Entry.torn`."""
        return self._snapshot([entry for index in self._held() if (entry := self._entry(index)) is not None])

    def read_header(self) -> Snapshot:
        """The same without entries: a look that costs little however much the worker holds."""
        return self._snapshot([])

    def _snapshot(self, entries: list[Entry]) -> Snapshot:
        words = self._words
        state = words[_STATE]
        return Snapshot(
            pid=words[_PID],
            session=self._signed[_SESSION],
            tick_ns=words[_TICK],
            state=WorkerState(state) if state <= WorkerState.DRAINED else WorkerState.STARTING,
            busy=words[_BUSY],
            running=words[_RUNNING],
            next_session=self._signed[_NEXT],
            ended=words[_ENDED],
            rss=words[_RSS],
            entries=entries,
            counted=words[_COUNTED],
        )

    def fault(self) -> str:
        """What the interpreter said when it died; empty if it said nothing."""
        words = self._bytes[HEADER + self.entries * ENTRY :].tobytes().partition(b"\0")[0]
        return words.decode("utf-8", "replace").strip()

    def overdue(self, now_ns: int) -> list[Entry]:
        """Started jobs whose deadline has passed: the cheap look that the parent takes often."""
        words = self._words
        found = []
        for index in self._held():
            deadline = words[(HEADER + index * ENTRY + 48) >> 3]
            if 0 < deadline <= now_ns:
                entry = self._entry(index)
                if entry and not entry.torn and entry.phase is Phase.STARTED and 0 < entry.deadline_ns <= now_ns:
                    found.append(entry)
        return found

    def crowd(self) -> tuple[int, int, int]:
        """Jobs claimed and not started, jobs started, and when the last of these was: as cheap as `overdue`."""
        words = self._words
        claimed, newest, started = 0, 0, 0
        for index in self._held():
            phase = self._phases[index]
            claimed += phase == Phase.CLAIMED
            if phase == Phase.STARTED:
                started += 1
                newest = max(newest, words[(HEADER + index * ENTRY + 40) >> 3])
        return claimed, started, newest

    def _held(self) -> list[int]:
        return [index for index, phase in enumerate(self._phases.tobytes()) if phase]

    def _entry(self, index: int) -> Entry | None:
        start = HEADER + index * ENTRY
        last = b""
        for _ in range(8):
            copy = bytes(self._bytes[start : start + ENTRY])
            if not copy[0] & 1 and copy == last:
                return _decode(index, copy, torn=False)
            last = copy
        return _decode(index, last, torn=True)

    def _cut_kind(self, kind: str) -> tuple[bytes, int]:
        text = _cut(kind, KIND_BYTES)
        if len(self._kinds) < 1_000:  # kinds nobody has a handler for may be many
            self._kinds[kind] = (text, len(text))
        return text, len(text)


def _open_in_child(dup: Any, entries: int) -> Board:
    return Board(dup.detach(), entries)


def _cut(text: str, limit: int) -> bytes:
    """*text* as UTF-8 of at most *limit* bytes, cut between characters."""
    return text[:limit].encode("utf-8", "replace")[:limit].decode("utf-8", "ignore").encode()


def _decode(index: int, copy: bytes, *, torn: bool) -> Entry | None:
    (
        _, phase, killed, job_id, token, claimed, started, deadline,
        delay, event, error_length, flags, kind_length, queue, kind, error, reason,
    ) = _WHOLE.unpack(copy)  # fmt: skip
    if phase == Phase.FREE:
        return None
    if phase > Phase.RETURNED or event >= len(EVENTS) or kind_length > KIND_BYTES or error_length > ERROR_BYTES:
        torn = True  # scribbled over: started is the reading that neither loses nor acknowledges the job
        phase, event, kind_length, error_length = min(phase, Phase.STARTED), 0, 0, 0
    returned = phase == Phase.RETURNED
    return Entry(
        index=index,
        job_id=job_id,
        token=token,
        phase=Phase(phase),
        kind=kind[:kind_length].decode("utf-8", "replace"),
        suspect=bool(flags & SUSPECT),
        claimed_ns=claimed,
        started_ns=started if phase >= Phase.STARTED else 0,
        deadline_ns=deadline if phase >= Phase.STARTED else 0,
        event=EVENTS[event] if returned else "",
        delay=delay if returned and math.isfinite(delay) else None,
        error=error[:error_length].decode("utf-8", "replace") if returned and error_length else None,
        reason=reason.rstrip(b"\0").decode("utf-8", "replace") or None if returned else None,
        killed=bool(killed),
        torn=torn,
        queue=queue,
    )
