#!/bin/sh
# Puts the CUDA compiler and disassembler into <repo>/.cache/nvcc, and prints the folder of their binaries. They come as
# Python wheels, pinned, because a package index is the one download source that every build machine has. Neither a GPU
# nor a driver is needed. Does nothing when they are here.
set -eu

repo=$(cd "$(dirname "$0")/../.." && pwd)
venv="$repo/.cache/nvcc"
wheels='nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
nvidia-cuda-cccl==13.0.85 nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvdisasm==13.2.51'

say() { printf 'nvcc: %s\n' "$*" >&2; }

if [ "$(cat "$venv/wheels" 2>/dev/null)" != "$wheels" ]; then
    say "fetching the CUDA compiler"
    rm -rf "$venv"
    python3 -m venv "$venv" >&2 || { say "python3-venv is missing; run deploy/setup/install.sh"; exit 1; }
    # --no-deps: all that is needed is named.
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps $wheels >&2
    printf '%s\n' "$wheels" > "$venv/wheels"
fi
for bin in "$venv"/lib/python3.*/site-packages/nvidia/cu13/bin; do
    [ -x "$bin/nvcc" ] && echo "$bin" && exit 0
done
say "the wheels hold no nvcc"
exit 1
