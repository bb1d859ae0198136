"""Threads for plain `def` handlers: one per running job, started when first needed, kept afterwards.

    reserve   there is a thread for one more, or NoThread: nothing has been handed over
    submit    hands a call to it; the future ends on the loop

Always true: a call that was refused never runs. concurrent.futures queues a call before it knows whether a
thread for it can be started: when that failed, the job was put down as failed and ran all the same, later.

The threads are daemons: one whose handler never returns must not keep the process.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

_AGAIN_S = 0.05
_Call = tuple[asyncio.Future[None], Callable[..., None], tuple[Any, ...]]


class NoThread(RuntimeError):
    """The system gives this process no more threads."""


class Threads:
    """As many threads as calls ran at once so far."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0
        self._pause = threading.Event()

    @property
    def busy(self) -> int:
        """Calls that have not ended."""
        return self._busy

    def reserve(self) -> None:
        """See to it that one more call would find a thread.

        Raises:
            NoThread: it would not.
        """
        if self._busy < self._count:
            return
        thread = threading.Thread(target=self._serve, name=f"job-{self._count}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise NoThread(str(error)) from error
        self._count += 1

    def submit(
        self, on_end: Callable[[asyncio.Future[None]], None], call: Callable[..., None], *arguments: Any
    ) -> asyncio.Future[None]:
        """Run *call* in a thread, after `reserve`; *on_end* is called on the loop when it has ended."""
        ended = self._loop.create_future()
        ended.add_done_callback(self._ended)
        ended.add_done_callback(on_end)
        self._calls.put((ended, call, arguments))  # last: what raises before it has handed over nothing
        self._busy += 1
        return ended

    def _ended(self, _: asyncio.Future[None]) -> None:
        self._busy -= 1

    def _serve(self) -> None:
        while True:
            ended, call, arguments = self._calls.get()
            error: BaseException | None = None
            try:
                call(*arguments)
            except BaseException as raised:
                error = raised
            self._report(ended, error)
            del ended, call, arguments, error

    def _report(self, ended: asyncio.Future[None], error: BaseException | None) -> None:
        while True:
            try:
                self._loop.call_soon_threadsafe(_tell, ended, error)
                return
            except MemoryError:  # untold, it would occupy its slot for ever
                self._pause.wait(_AGAIN_S)
            except RuntimeError:  # the loop is closed: the process leaves
                return


def _tell(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
