"""One worker process as the parent sees it.

Its state moves by the table in states.py. What it says arrives by its channel, what it does is on its
board, its end by its pidfd.
"""

import time
from collections.abc import Callable

from supervisor.clock import to_ns
from supervisor.metrics import OTHER
from supervisor.parent.spawn import Spawned
from supervisor.parent.states import NEXT, Happened, State
from supervisor.wire.board import Phase, Snapshot
from supervisor.wire.channel import Channel
from supervisor.wire.messages import CancelJob, Drain, HandBack, Isolate, Lanes, Message, Stop, Wake


class Child:
    """A worker: its process, channel, board and state.

    Args:
        on_message: called with each message it sends.
        on_exit: called once it is gone, with the exit code (None: unknown).
    """

    def __init__(
        self,
        slot: int,
        spawned: Spawned,
        *,
        on_message: Callable[["Child", Message], None],
        on_exit: Callable[["Child", int | None], None],
    ) -> None:
        self.slot = slot
        self.pid = spawned.pid
        self.state = State.STARTING
        self.born = time.monotonic()
        self.caused: str | None = None
        """Why the parent ended it; None while it has not."""
        self.birth_rss = 0
        self.queues: tuple[str, ...] = ()
        """The queues that its scoreboard numbers, from 1."""
        self.counted_before = 0.0
        """Runs in its slot's metrics when it was forked."""
        self.hungry = False
        """It looked for jobs and found no more; a wake would find it idle."""
        self.woken_at = 0.0
        """When it was last woken without having answered yet; 0 when it owes no answer."""
        self.blocked_since: float | None = None
        self.waited_ns = 0
        """When jobs were last seen to wait while all its slots were taken (monotonic)."""
        self.starved_ns = 0
        """The start of the last job it could start, if it has been said to starve since; else 0."""
        self.boot_failure: str | None = None
        self._spawned = spawned
        self.board = spawned.board
        self.channel = Channel(spawned.sock, on_message=lambda message: on_message(self, message))
        spawned.watch(lambda code: on_exit(self, code))

    def happened(self, what: Happened) -> None:
        """Move on by the table of states."""
        self.state = NEXT[self.state, what]

    @property
    def alive(self) -> bool:
        """Whether the process exists, as far as is known."""
        return self.state is not State.EXITED

    @property
    def load(self) -> int:
        """Jobs it runs, as of its last tick."""
        return self.board.running

    @property
    def busy(self) -> bool:
        """Whether it runs jobs now."""
        return any(entry.phase is Phase.STARTED for entry in self.snapshot().entries)

    def queue_named(self, place: int) -> str:
        """The label of the queue with that number on its scoreboard."""
        return self.queues[place - 1] if 0 < place <= len(self.queues) else OTHER

    def wake(self, message: Wake) -> None:
        """Tell it to look for jobs."""
        self.channel.send(message)

    def tell(self, message: Lanes | CancelJob | Isolate | HandBack) -> None:
        """Tell it something that needs no answer."""
        self.channel.send(message)

    def snapshot(self) -> Snapshot:
        """What its board says now."""
        return self.board.read()

    def sessions(self) -> list[int]:
        """The sessions its leases hang on; the second is the one it is moving to."""
        board = self.board.read_header()
        return [session for session in (board.session, board.next_session) if session]

    def renewed(self, until: float) -> None:
        """Its leases hold until *until* (monotonic seconds)."""
        self.board.set_lease_until(to_ns(until))

    def drain(self, deadline: float, reason: str) -> None:
        """Ask it to stop claiming and to leave by *deadline*; said again, an earlier deadline counts."""
        self.happened(Happened.DRAIN)
        self.caused = self.caused or reason
        self.channel.send(Drain(deadline, reason))

    def stop_now(self, reason: str) -> None:
        """Ask it to interrupt what runs and leave."""
        self.happened(Happened.DRAIN)
        self.caused = self.caused or reason
        self.channel.send(Stop(now=True))

    def kill(self, reason: str) -> None:
        """End it, whatever it is doing."""
        self.happened(Happened.KILL)
        self.caused = self.caused or reason
        self._spawned.signal(9)

    def gone(self) -> None:
        """It has exited; its board stays readable until `close`."""
        self.channel.finish()
        self.happened(Happened.GONE)
        self.hungry = False

    def close(self) -> None:
        """Give back everything."""
        self.channel.close()
        self._spawned.close()
