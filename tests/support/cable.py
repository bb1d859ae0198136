"""A TCP cable to any server that can be pulled and put back: connections are reset, new ones are refused meanwhile."""

import asyncio
import contextlib
import socket
import threading
from typing import Self

_CHUNK = 65536


class Cable:
    """From a port of its own to *target_port*, both on 127.0.0.1; its loop runs in a thread."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._pulled = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._socket.close()

    def pull(self) -> None:
        """Reset what is connected; whoever connects is reset at once."""

        async def pull() -> None:
            self._pulled = True
            for writer in self._writers:
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(pull(), self._loop).result(10)

    def put_back(self) -> None:
        self._pulled = False

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._socket))
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._pulled:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        writer.close()
