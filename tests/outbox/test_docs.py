"""The example of docs/outbox.md, as it stands there: an order in one database becomes an invoice in another."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nats as nats_client
import pytest

from tests.support.brokers import Nats
from tests.support.database import Database
from tests.support.relay import REPO
from tests.support.servers import Server

BLOCK = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def billing(server: Server) -> Iterator[Database]:
    found = Database.create(server)
    yield found
    found.drop()


def started(script: str, env: dict[str, str], place: Path) -> subprocess.Popen[bytes]:
    """A block of shell, as a process: its variables, and its command."""
    words = shlex.split(script.replace("\\\n", " "))
    given = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("supervisor"))
    command = words[words.index("supervisor") + 1 :]
    assert len(given) + 1 + len(command) == len(words), words
    variables = {name: os.path.expandvars(value) for name, value in given.items()}
    with (place / f"{command[0]}.log").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "supervisor", *command], env={**env, **variables}, cwd=place, stderr=out, stdout=out
        )


async def test_the_example_works_as_it_stands(
    db: Database, billing: Database, nats: Nats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = {name: (kind, text) for kind, name, text in BLOCK.findall((REPO / "docs/outbox.md").read_text())}
    assert blocks.keys() == {"shop.py", "billing.py", "relay", "billing"}
    for name in ("shop.py", "billing.py"):
        (tmp_path / name).write_text(blocks[name][1])
    billing.execute("create table invoice (order_id bigint, total numeric)")
    client = await nats_client.connect(nats.url)
    await client.jetstream().add_stream(name=f"orders-{db.name}", subjects=["orders.>"])

    env = {key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR_")}
    env |= {"PYTHONPATH": str(REPO), "SUPERVISOR_HEALTH_PORT": "off", "SUPERVISOR_PROCESSES": "1"}
    env["SUPERVISOR_RUN_DIR"] = str(tmp_path / "run")
    for name, value in (("SHOP", db.conninfo), ("BILLING", billing.conninfo), ("BROKER", nats.url)):
        monkeypatch.setenv(name, value)
    roles = [started(blocks[name][1], env, tmp_path) for name in ("relay", "billing")]
    try:
        subprocess.run([sys.executable, "shop.py", db.conninfo], cwd=tmp_path, env=env, check=True)
        billing.wait_for("select count(*)::int from invoice", 3, 40)
        invoices = billing.rows("select order_id::int, total::int from invoice order by 1")
        assert invoices == [(1, 10), (2, 20), (3, 30)]
        assert billing.value("select count(*)::int from supervisor.inbox where consumer = 'billing'") == 3
        db.wait_for("select count(*)::int from supervisor.outbox", 0, 5)
    finally:
        for one in roles:
            one.terminate()
        for one in roles:
            one.wait(30)
        await client.jetstream().delete_stream(f"orders-{db.name}")
        await client.close()
    assert [one.returncode for one in roles] == [0, 0], [(log.name, log.read_text()) for log in tmp_path.glob("*.log")]
