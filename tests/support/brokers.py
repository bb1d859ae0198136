"""Real brokers, started by the tests themselves: NATS JetStream, RabbitMQ, and a server of Kafka's protocol.

Each listens on 127.0.0.1, keeps its data in a directory of the test session, and is a direct child: stopped at the
session's end, and killed by the kernel when the tests die.

Elsewhere: reading what arrived (arrivals.py).
"""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.tools import missing
from tests.support.waiting import wait_until

DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL")


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str, remedy: str) -> str:
    """Where *name* is; the test fails or is skipped when it is not there."""
    found = shutil.which(name, path="/usr/sbin:/usr/lib/rabbitmq/bin:/usr/bin:/usr/local/bin")
    if found is None:
        missing(f"{name} is missing: {remedy}")
    return found


def answers(port: int) -> bool:
    """Whether somebody listens on *port*."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Nats:
    """A nats-server with JetStream on disk."""

    def __init__(self, base: Path) -> None:
        self._program = program("nats-server", "apt install nats-server")
        self._dir = base / "nats"
        self._dir.mkdir(parents=True)
        self.port = free_port()
        self.log = self._dir / "log"
        self.max_payload = 1 << 20
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        config = self._dir / "config"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\nmax_payload: {self.max_payload}\n"
            f"jetstream {{ store_dir: '{self._dir / 'data'}' }}\n"
        )
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, self._program, "-c", str(config)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        wait_until(lambda: answers(self.port) or self._process is None, 15, "nats-server answers")
        if self._process.poll() is not None:
            pytest.fail(f"nats-server did not start: {self.log.read_text()[-2000:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(15)

    def restart(self, away_s: float = 0.0, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, leave it down for a while, start it with its data."""
        self.stop(number)
        time.sleep(away_s)
        self.start()
