#!/bin/sh
# Writes constraints.txt: the exact releases of everything the extras bring in,
# as a fresh environment of the oldest supported Python resolves them today.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check '.[dev]'
{
    echo "# Exact releases for reproducible environments and images: pip install -c constraints.txt ..."
    echo "# Written by 'make lock'; do not edit."
    "$work/venv/bin/python" -m pip freeze --disable-pip-version-check --exclude pg-supervisor
} > "$work/constraints.txt"
mv "$work/constraints.txt" constraints.txt
chmod 644 constraints.txt
