#!/bin/sh
# A private Python environment with the gateways that `make bench-gateway` measures beside ours, pinned by hash in
# tests/bench/requirements.txt. Does nothing when it is there already; never touches the system's Python.
set -eu
cd "$(dirname "$0")/../.."
requirements=tests/bench/requirements.txt
venv=.cache/venv-bench
stamp=$venv/installed-requirements.txt

if cmp -s "$requirements" "$stamp"; then
    exit 0
fi
echo "setup: installing the other gateways into $venv"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$requirements"
cp "$requirements" "$stamp"
