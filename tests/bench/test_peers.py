"""What the peers of the benches are installed with."""

from pathlib import Path

import pytest

from bench.peers.env import python_for


def program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_a_python_that_only_pyenv_has_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim is on the path for every version that is installed, and fails for those that are not chosen."""
    shims, version = tmp_path / "shims", tmp_path / "versions" / "99.1.2"
    program(shims / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    program(
        shims / "pyenv",
        f"""case "$1 $2" in
"whence python3.12") echo 99.1.2 ;;
"prefix 99.1.2") echo {version} ;;
*) exit 1 ;;
esac""",
    )
    program(version / "bin" / "python3.12", "echo 99 1")
    monkeypatch.setenv("PATH", str(shims))

    assert python_for((99, 0)) == str(version / "bin" / "python3.12")
    assert python_for((99, 2)) is None
