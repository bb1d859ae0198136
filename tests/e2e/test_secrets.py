"""B41 for each command and for the dashboard: an address that does not work is told without its password.

Elsewhere: the ways to give an address, and its forms (test_cli.py); the service, its logs, pages and process titles
(process/test_logs.py).
"""

import re
from pathlib import Path
from typing import Final

import pytest

from supervisor import exits
from tests.e2e.test_cli import CODED, Cli
from tests.support import proc
from tests.support.dashboard import Dashboard
from tests.support.database import Database
from tests.support.servers import ROLE

PIECE: Final = "s3kr1t"
COMMANDS: Final = (
    ("status",),
    ("migrate",),
    ("enqueue", "x"),
    ("doctor",),
    ("jobs", "list"),
    ("jobs", "show", "1"),
    ("jobs", "story", "1"),
    ("jobs", "retry", "1"),
    ("jobs", "cancel", "1"),
)
ADDRESSES: Final = {
    "wrong password": "postgresql://{role}:{coded}@127.0.0.1:{port}/postgres",
    "bad port": "postgresql://u:{coded}@127.0.0.1:99999/x",
    "no scheme": "u:{coded}@127.0.0.1/x",
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_shows_the_password_of_an_address_that_does_not_work(
    db: Database, tmp_path: Path, command: tuple[str, ...]
) -> None:
    cli = Cli(tmp_path)
    for case, text in ADDRESSES.items():
        address = text.format(role=ROLE, coded=CODED, port=db.server.port)
        ran = cli(*command, SUPERVISOR_DATABASE_URL=address)
        assert ran.code != exits.OK, case
        assert ran.code != exits.SOFTWARE, ran.err
        assert PIECE not in ran.out + ran.err, case
        assert ran.out + ran.err


def test_the_dashboard_says_that_the_database_is_away_without_its_password(db: Database) -> None:
    """Each page it links to, its log and its process title."""
    address = ADDRESSES["wrong password"].format(role=ROLE, coded=CODED, port=db.server.port)
    with Dashboard(db, "--database-url", address, log_level="debug") as dashboard:
        overview = dashboard.get("/", follow_redirects=True)
        pages = {link for link in re.findall(r'href="(/[^"#?]*)"', overview.text) if "static" not in link}
        assert pages
        for page in ("/", "/jobs/1", *sorted(pages)):
            answer = dashboard.get(page, follow_redirects=True)
            assert PIECE not in answer.text, page
            assert PIECE not in str(answer.headers), page
        assert PIECE not in proc.command_line(dashboard.pid)
        log = dashboard.log
    assert PIECE not in log()
