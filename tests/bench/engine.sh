#!/usr/bin/env bash
# Aggregate decode of Weir's engine beside llama.cpp's batched bench: same machine, file, threads and shape, alternating in
# one run so that a noisy machine disturbs both. Prints medians and ratios; fails if a target is missed.
#   ROUNDS=5 THREADS=2 tests/bench/engine.sh
# llama.cpp is built once from llama-cpp-python's source (PyPI) with native flags into .cache/llamacpp. With clang: gcc 12
# miscompiles its AMX path.
set -euo pipefail

repo=$(cd "$(dirname "$0")/../.." && pwd)
rounds=${ROUNDS:-5} threads=${THREADS:-2}
model="$repo/.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
peer="$repo/.cache/llamacpp"
version=0.3.36 sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

say() { printf 'bench-engine: %s\n' "$*" >&2; }

build_peer() {
    [ -x "$peer/build/bin/llama-batched-bench" ] && return
    for tool in clang cmake python3; do
        command -v "$tool" >/dev/null || { say "$tool is missing (apt-get install clang cmake python3-pip)"; exit 1; }
    done
    say "building llama.cpp from llama-cpp-python $version (minutes, once)"
    mkdir -p "$peer"
    local archive="$peer/llama_cpp_python-$version.tar.gz"
    [ -f "$archive" ] || python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: \
        -d "$peer" "llama-cpp-python==$version"
    echo "$sha256  $archive" | sha256sum --check --quiet
    tar xf "$archive" -C "$peer"
    cmake -S "$peer/llama_cpp_python-$version/vendor/llama.cpp" -B "$peer/build" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGGML_NATIVE=ON -DGGML_CCACHE=OFF -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF >"$peer/build.log" 2>&1
    cmake --build "$peer/build" -j"$(nproc)" --target llama-batched-bench >>"$peer/build.log" 2>&1
}

[ -f "$model" ] || { say "no model file: run \`make models\`"; exit 1; }
build_peer
cargo build --release -q -p weir-engine --example decode_bench --manifest-path "$repo/Cargo.toml"
ours="${CARGO_TARGET_DIR:-$repo/target}/release/examples/decode_bench"

results=$(mktemp)
trap 'rm -f "$results"' EXIT
for round in $(seq "$rounds"); do
    say "round $round of $rounds"
    "$peer/build/bin/llama-batched-bench" -m "$model" -c 8192 -b 2048 -ub 512 -npp 128 -ntg 128 -npl 1,16 \
        -t "$threads" -tb "$threads" --output-format jsonl 2>/dev/null | grep '^{' | sed 's/^/peer /' >>"$results"
    "$ours" --model "$model" --threads "$threads" --npp 128 --ntg 128 --npl 1,16 | sed 's/^/ours /' >>"$results"
done

python3 - "$results" <<'PY'
import collections, json, statistics, sys

TARGETS = {1: 0.7, 16: 1.2}
decode, prefill = collections.defaultdict(list), collections.defaultdict(list)
for line in open(sys.argv[1]):
    who, record = line.split(" ", 1)
    record = json.loads(record)
    streams = record["pl"] if who == "peer" else record["streams"]
    decode[streams, who].append(record["speed_tg"] if who == "peer" else record["decode_tokens_per_s"])
    prefill[streams, who].append(record["speed_pp"] if who == "peer" else record["prefill_tokens_per_s"])
missed = False
print(f"{'streams':>7} {'':8} {'weir':>10} {'llama.cpp':>10} {'ratio':>6}   (medians of {len(decode[1, 'ours'])} rounds, tokens/s)")
for streams, target in TARGETS.items():
    for name, values in (("prefill", prefill), ("decode", decode)):
        ours, peer = (statistics.median(values[streams, who]) for who in ("ours", "peer"))
        verdict = "" if name == "prefill" else f"target {target}: {'met' if ours / peer >= target else 'MISSED'}"
        missed |= verdict.endswith("MISSED")
        print(f"{streams:7} {name:8} {ours:10.1f} {peer:10.1f} {ours / peer:6.2f}   {verdict}")
sys.exit(missed)
PY
