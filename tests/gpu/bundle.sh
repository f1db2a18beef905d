#!/bin/sh
# Builds what a machine with a GPU needs for run.sh, in <repo>/.build/gpu; needs no GPU itself. Runs it where there is one.
set -eu

repo=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repo"
bundle=.build/gpu
model=.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}

say() { printf 'gpu: %s\n' "$*"; }

"$cargo" build --release -p weir-engine --features cuda --example gpu_bench
# Cargo alone knows what it calls the program of a test.
numerics=$("$cargo" test --release -p weir-kernels --features cuda --test numerics --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*numerics-[^"]*\)".*/\1/p')

rm -rf "$bundle"
mkdir -p "$bundle"
cp "$target/release/examples/gpu_bench" tests/gpu/run.sh tests/gpu/compare.py tests/reference/reference_model.py \
    data-plane/engine/tests/fixtures/golden.json "$bundle"
cp "$numerics" "$bundle/numerics"
if [ -f "$model" ]; then
    cp "$model" "$bundle"
else
    say "$model is not there (make models): the whole model will not be checked"
fi
# Transformers reads GGUF with it; a machine with PyTorch rarely has it.
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$bundle" gguf==0.19.0; then
    say "the package gguf could not be fetched: Transformers is compared with only where it is installed"
fi

if "$bundle/gpu_bench" probe > "$bundle/probe.txt" 2>&1; then
    exec "$bundle/run.sh"
fi
say "$(tail -n 1 "$bundle/probe.txt")"
say "to check and measure, copy $bundle ($(du -sh "$bundle" | cut -f1)) to a machine with a GPU, and there run: gpu/run.sh"
