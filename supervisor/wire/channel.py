"""Messages between parent and worker over a socket pair; neither side ever waits for the other.

    send --> pending --> frames --> socket --> socket --> on_message, or `async for`

`send` puts a message with the pending ones and writes what the socket takes now;
the rest goes when the loop finds it writable. A reader merges the wakes it finds
in its socket too.

The socket is SOCK_SEQPACKET: a packet arrives whole or not at all, so a writer
killed in the middle leaves no half message for the reader to stumble over, and
there is no length prefix to lose step with. Long messages go as several packets.

    packet: one byte, "+" (more follows) or "." (the last), then up to 32 KiB

Always true: what was written before the writer's death is read before the EOF is
told; the EOF is told once; unreadable packets are counted and skipped. Not for
use by several threads.

Elsewhere: the messages (messages.py); which of those that wait are sent (pending.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from supervisor.wire.messages import Message, Unreadable, Wake, decode, encode
from supervisor.wire.pending import Pending, merge_wakes

FRAME_BYTES: Final = 32 * 1024
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
PACKETS_PER_TURN: Final = 100  # then other callbacks of the loop have their turn
INBOX: Final = 256


def open_pair() -> tuple[socket.socket, socket.socket]:
    """The parent's end and the worker's end; the latter is an argument of the process, closed here after the spawn."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end. Make it inside of the running loop.

    Args:
        on_message: Called with each message. None: iterate over the channel instead.
        on_eof: Called once when the other side is gone (not by `close`).
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_message: Callable[[Message], object] | None = None,
        on_eof: Callable[[], object] | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_eof = on_eof
        self._pending = Pending()
        self._frames: deque[bytes] = deque()
        self._blocked = False
        self._deaf = False  # the other side takes no more
        self._flushed: asyncio.Event | None = None
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._inbox: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._reading = False
        self.eof = False
        self.closed = False
        self.unknown = 0  # messages of a type this side does not know
        self.malformed = 0
        self._read_on()

    # -- Sending ----------------------------------------------------------------------------

    def send(self, message: Message) -> bool:
        """Send soon; never waits.

        Returns:
            False if it will not be sent: the other side is gone, or reads so little that
            `pending.MAX_CONTROL` different messages wait (CancelJob and Notice only; others replace their
            older selves).
        """
        if self.closed or self._deaf:
            return False
        if isinstance(message, Wake) and not self.backlog:
            self._frames.extend(_frames(message))  # nothing to merge it with
        elif not self._pending.add(message):
            return False
        if not self._blocked:
            self._pump()
        return not self._deaf

    @property
    def backlog(self) -> bool:
        """Whether something waits for the other side to read."""
        return bool(self._frames) or bool(self._pending)

    async def flush(self, timeout: float) -> bool:
        """Wait until all is handed to the kernel; False if *timeout* seconds were not enough or nobody reads."""
        if self.backlog and not self._deaf and not self.closed:
            self._flushed = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._flushed.wait()
        return not self.backlog and not self._deaf

    def _pump(self) -> None:
        try:
            while True:
                while self._frames:
                    self._sock.send(self._frames[0])
                    self._frames.popleft()
                message = self._pending.next()
                if message is None:
                    break
                self._frames.extend(_frames(message))
        except (BlockingIOError, InterruptedError):
            if not self._blocked:
                self._blocked = True
                self._loop.add_writer(self._sock.fileno(), self._pump)
            return
        except OSError:  # gone; what it wrote before is still to be read, so the reading side tells the EOF
            self._deaf = True
            self._frames.clear()
            self._pending = Pending()
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._sock.fileno())
        if self._flushed is not None:
            self._flushed.set()

    # -- Receiving --------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages until the EOF."""
        while True:
            while self._inbox:
                yield self._inbox.popleft()
                if len(self._inbox) < INBOX // 2:
                    self._read_on()
            if self.eof or self.closed:
                return
            self._arrived.clear()
            await self._arrived.wait()

    def close(self) -> None:
        """Give the socket back; the other side sees the EOF. What is not sent yet is dropped: `flush` first."""
        if self.closed:
            return
        self.closed = True
        self._pause()
        if self._blocked:
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._arrived.set()
        if self._flushed is not None:
            self._flushed.set()

    def finish(self) -> None:
        """The other side is dead: hear its last messages, then close."""
        while self._on_message is not None and not (self.eof or self.closed):
            messages, ended = self._receive()
            for message in merge_wakes(messages):
                self._on_message(message)
            if ended or not messages:
                break
        self.close()

    def _read_on(self) -> None:
        if not (self._reading or self.eof or self.closed):
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        messages, ended = self._receive()
        if ended:
            self._pause()
            self.eof = True
            self._deaf = True
        for message in merge_wakes(messages):
            if self._on_message is None:
                self._inbox.append(message)
            elif not self.closed:  # a callback may close
                self._on_message(message)
        if len(self._inbox) >= INBOX:
            self._pause()
        self._arrived.set()
        if ended:
            if self._flushed is not None:
                self._flushed.set()
            if self._on_eof is not None and not self.closed:
                self._on_eof()

    def _receive(self) -> tuple[list[Message], bool]:
        messages: list[Message] = []
        for _ in range(PACKETS_PER_TURN):
            try:
                packet = self._sock.recv(FRAME_BYTES + 1)
            except (BlockingIOError, InterruptedError):
                return messages, False
            except ConnectionResetError:
                continue  # it died with messages unread; its own last ones are still to come, then the EOF
            except OSError:
                return messages, True
            if not packet:
                return messages, True
            message = self._assemble(packet)
            if message is not None:
                messages.append(message)
        return messages, False

    def _assemble(self, packet: bytes) -> Message | None:
        self._partial.append(packet[1:])
        self._partial_size += len(packet)
        if packet[:1] == b"+" and self._partial_size <= MAX_MESSAGE_BYTES:
            return None
        data = b"".join(self._partial)
        self._partial, self._partial_size = [], 0
        try:
            return decode(data)
        except Unreadable as error:
            self.unknown += error.unknown
            self.malformed += not error.unknown
            return None


def _frames(message: Message) -> Iterator[bytes]:
    data = encode(message)
    while len(data) > FRAME_BYTES:
        yield b"+" + data[:FRAME_BYTES]
        data = data[FRAME_BYTES:]
    yield b"." + data


def send_blocking(sock: socket.socket, message: Message, timeout: float) -> bool:
    """Send without a loop, before there is one or after it ended (BootFailed); False if it could not be sent."""
    sock.settimeout(timeout)
    try:
        for frame in _frames(message):
            sock.send(frame)
    except OSError:
        return False
    return True
