#!/bin/sh
# python.sh VENV REQUIREMENTS [OPTION]...: a private Python environment with what is pinned in REQUIREMENTS, by pip with
# these options. Does nothing when it is there already; never touches the system's Python.
set -eu
cd "$(dirname "$0")/../.."
venv=$1
requirements=$2
shift 2
stamp=$venv/installed-requirements.txt

if cmp -s "$requirements" "$stamp"; then
    exit 0
fi
echo "setup: installing $requirements into $venv"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" -r "$requirements"
cp "$requirements" "$stamp"
