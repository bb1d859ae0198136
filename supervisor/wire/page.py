"""The layout of a scoreboard's page, and how an entry is read from it.

Layout, little endian, offsets in bytes:

    0     <4sIQQ  magic "BRD1", entries; lease_until (monotonic ns); flags    line of the parent
    64    <QqQQQQqQQQ  pid, session, tick (monotonic ns), state, busy,         lines of the worker
                  running, next session (0: none), jobs ended, rss (bytes), runs counted
    256   entries of 256 bytes:
       0  <Q  sequence: odd while the entry is being written
       8  B   phase: 0 free, 1 claimed, 2 started, 3 returned
       9  B   killed: why the parent killed the worker for this job: 1 its deadline, 2 cancelled (the parent's byte)
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

Always true: whatever stands on a page reads as something, nonsense perhaps, and never as an exception.

Elsewhere: who writes and who reads (board.py).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

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

EVENT_INDEX: Final = {event: index for index, event in enumerate(EVENTS)}
TOP = struct.Struct("<4sI")
CLAIM = struct.Struct("<qqQQQdBBBBH2x48s")  # from 16: all fields but sequence and phase
START = struct.Struct("<QQ")  # from 40
RETURN = struct.Struct("<dBB")  # from 56
WHOLE = struct.Struct("<QBB6xqqQQQdBBBBH2x48s128s8s")
assert WHOLE.size == ENTRY

# Header words as indices of 8 bytes.
LEASE, FLAGS = 1, 2
PID, SESSION, TICK, STATE, BUSY, RUNNING, NEXT, ENDED, RSS, COUNTED = 8, 9, 10, 11, 12, 13, 14, 15, 16, 17


class Phase(IntEnum):
    """How far a job on the page has come."""

    FREE = 0
    CLAIMED = 1
    STARTED = 2
    RETURNED = 3


class WorkerState(IntEnum):
    """What a worker says it does."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    DRAINED = 3


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
    killed: bool  # the parent killed the worker for this job: its deadline, or it was cancelled
    torn: bool  # caught in a write: final for a dead worker; of a living one, read again before acting on it
    queue: int = 0  # its place among the queues that Ready named, from 1; 0: another
    cancelled: bool = False  # killed, and since it was cancelled


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A page as it was read: what its worker does, and what it holds."""

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


def cut(text: str, limit: int) -> bytes:
    """*text* as UTF-8 of at most *limit* bytes, cut between characters."""
    return text[:limit].encode("utf-8", "replace")[:limit].decode("utf-8", "ignore").encode()


def decode(index: int, copy: bytes, *, torn: bool) -> Entry | None:
    """The entry in *copy*, the bytes of the entry at *index*; None when it is free. *torn*: caught in a write."""
    (
        _, phase, killed, job_id, token, claimed, started, deadline,
        delay, event, error_length, flags, kind_length, queue, kind, error, reason,
    ) = WHOLE.unpack(copy)  # fmt: skip
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
        cancelled=killed == 2,
    )
