"""Type checkers see a handler's own parameters at its `.enqueue`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CODE = """
from typing import Any
from psycopg import AsyncConnection, Connection
from supervisor import Job, enqueue, handler

@handler("a")
async def send(user_id: int, lang: str = "en") -> None: ...

@handler("b")
def build(job: Job, report_id: int) -> None: ...

async def use(sync: Connection[Any], aio: AsyncConnection[Any]) -> None:
    reveal_type(send)
    reveal_type(build)
    reveal_type(send.enqueue(sync, user_id=7))
    reveal_type(await send.enqueue(aio, 7, lang="fr"))
    reveal_type(send.at(in_=3600, unique_key="k").enqueue(sync, 7))
    reveal_type(build.enqueue(sync, report_id=1))
    reveal_type(enqueue(sync, "a", {"user_id": 7}, priority=1))
    reveal_type(await enqueue(aio, send, {"user_id": 7}))
    reveal_type(await send.enqueue_many(aio, [{"user_id": 7}]))
    send.enqueue(sync, user_id="x")  # error
    send.enqueue(sync)  # error
    send.enqueue(sync, 7, nope=1)  # error
    send.enqueue(user_id=7)  # error
    build.enqueue(sync, job=1, report_id=1)  # error
    send.at(prio=1)  # error
    send.at(on_conflict="ignore")  # error
    enqueue(sync, "a", priority="high")  # error

@handler("c", prio=1)  # error
def other() -> None: ...
"""

REVEALED = [
    "Handler[[user_id: int, lang: str =]]",
    "Handler[[report_id: int]]",
    "Enqueued",
    "Enqueued",
    "Enqueued",
    "Enqueued",
    "Enqueued",
    "Enqueued",
    "list[Enqueued]",
]


def test_mypy_knows_each_handlers_parameters(tmp_path: Path) -> None:
    file = tmp_path / "uses_handlers.py"
    file.write_text(CODE)
    cache = ROOT / ".mypy_cache" / "typing-test"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache), str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    notes, errors = [], set()
    for line in done.stdout.splitlines():
        _, number, severity, text = line.split(":", 3)
        if "Revealed type is" in text:
            notes.append(text.split('"')[1])
        elif severity.strip() == "error":
            errors.add(int(number))
    for long, short in (
        ("tuple[int, bool, fallback=supervisor.keys.Enqueued]", "Enqueued"),
        ("supervisor.handler.", ""),
    ):
        notes = [note.replace(long, short) for note in notes]
    expected = {number for number, line in enumerate(CODE.splitlines(), start=1) if line.endswith("# error")}
    assert errors == expected, done.stdout
    assert notes == REVEALED, done.stdout
