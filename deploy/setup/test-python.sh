#!/bin/sh
# A private Python environment with the clients that the tests drive Weir with, pinned in
# tests/conformance/requirements.txt. Does nothing when it is there already; never touches the system's Python.
set -eu
cd "$(dirname "$0")/../.."
requirements=tests/conformance/requirements.txt
venv=.cache/venv-tests
stamp=$venv/installed-requirements.txt

if cmp -s "$requirements" "$stamp"; then
    exit 0
fi
echo "setup: installing the test clients into $venv"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
cp "$requirements" "$stamp"
