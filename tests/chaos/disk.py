"""A small file system for the chaos database, which can be filled and freed within a moment.

It is a tmpfs of its own, so filling it costs no memory: its limit is set to what it holds. The server's
write-ahead log is elsewhere.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.support.database import Database
from tests.support.servers import Server

_SIZE: Final = "4g"
_TABLESPACE: Final = "chaos_disk"


class Disk:
    """A mounted file system that holds the tables of one database.

    Raises:
        OSError: mounting is not permitted here; the text says why.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.place = Path(tempfile.mkdtemp(prefix="chaos-disk-", dir="/tmp"))
        try:
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=700", "chaos", str(self.place)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            self.place.rmdir()
            raise
        if done.returncode:
            self.place.rmdir()
            raise OSError(done.stderr.strip().splitlines()[-1])
        owner = server.dir.stat()
        os.chown(self.place, owner.st_uid, owner.st_gid)

    def hold(self, db: Database) -> None:
        """Move all tables of *db* here; nobody may be connected to it."""
        self._server.execute(f"create tablespace {_TABLESPACE} location '{self.place}'")
        self._server.execute(f"alter database {db.name} set tablespace {_TABLESPACE}")

    def fill(self) -> None:
        """From now on hardly a page more fits. Tables grow meanwhile: a limit below what they have is refused."""
        for spare in range(65):
            used = os.statvfs(self.place)
            if self._limit(str((used.f_blocks - used.f_bfree + 16 * spare) * used.f_frsize)):
                return
        raise OSError(f"{self.place} grew faster than it could be limited")

    def free(self) -> None:
        """There is room again."""
        if not self._limit(_SIZE):
            raise OSError(f"{self.place} could not be given its room back")

    def _limit(self, size: str) -> bool:
        words = ["mount", "-o", f"remount,size={size}", str(self.place)]
        return subprocess.run(words, check=False, capture_output=True).returncode == 0

    def close(self) -> None:
        """Unmount it, once the server has stopped or let go of it."""
        subprocess.run(["umount", "--lazy", str(self.place)], check=True, capture_output=True)
        self.place.rmdir()
