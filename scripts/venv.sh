#!/bin/sh
# Makes .venv hold this checkout and what it needs, from nothing if need be.
#
#   scripts/venv.sh run     the service, its dashboard, the embedded PostgreSQL, the examples
#   scripts/venv.sh dev     the same, and the tools for tests and checks
#
# Cheap when nothing changed: .venv/.installed-<what> holds the key of the last
# installation (project files, place, interpreter), and an equal key ends it here.
set -eu
what=${1:?usage: scripts/venv.sh run|dev}
cd "$(dirname "$0")/.."

case $what in
    run) target='.[dashboard,embedded,webhook]' ;;
    dev) target='.[dev]' ;;
    *) echo "scripts/venv.sh: unknown set '$what': use run or dev" >&2; exit 2 ;;
esac

key() {
    { pwd; .venv/bin/python -VV; cat pyproject.toml constraints.txt scripts/venv.sh; } 2>/dev/null | cksum
}

installed() {
    # What 'dev' installs contains what 'run' needs.
    for stamp in ".venv/.installed-$what" .venv/.installed-dev; do
        if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(key)" ]; then return 0; fi
    done
    return 1
}

# A name on the path proves nothing (version managers put failing shims there): run it.
pick_python() {
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

explain_missing() {
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            echo "$candidate (Python $version) has no venv/ensurepip module. On Debian or Ubuntu:" \
                 "apt install python3-venv (or python$version-venv); then run make again." >&2
            return
        fi
    done
    found=$(python3 --version 2>/dev/null || echo "nothing that runs")
    echo "Python 3.11 or newer is needed; tried ${PYTHON:-python3.13 python3.12 python3.11 python3} (python3 is $found). On Debian 12 or newer:" \
         "apt install python3 python3-venv; or name an interpreter: make PYTHON=/path/to/python3.12 ..." >&2
}

if [ -x .venv/bin/python ] && .venv/bin/python -c 'import pip' >/dev/null 2>&1; then
    if installed; then exit 0; fi
else
    if ! python=$(pick_python); then
        explain_missing
        exit 1
    fi
    echo "Making .venv with $("$python" --version)" >&2
    rm -rf .venv
    "$python" -m venv .venv
fi

echo "Installing $target into .venv (once; again only when pyproject.toml or constraints.txt change)" >&2
PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
    .venv/bin/python -m pip install --quiet --no-input --constraint constraints.txt --editable "$target"
key > ".venv/.installed-$what"
