#!/bin/sh
# Checks and measures Weir's CUDA backend on a machine with a GPU, in ten minutes at most. `make gpu` puts it into a folder
# with the programs it runs; nothing else of Weir has to be there.
#   run.sh [--tiny] [FOLDER]    FOLDER: where the results go, `results` beside this script if not said
# --tiny shrinks every shape, for testing this script on a driver that runs on the CPU; its times mean nothing.
# Prints one line a step: PASS, FAIL or SKIP, seconds, and what was found or why not. Ends with 1 if any step failed.
# docs/gpu.md says what the steps do and how the results are read.
set -u

here=$(cd "$(dirname "$0")" && pwd)
tiny=
if [ "${1:-}" = --tiny ]; then
    tiny=--tiny
    shift
fi
results=${1:-$here/results}
bench="$here/gpu_bench"
model="$here/SmolLM2-135M-Instruct.Q4_1.gguf"
python=${PYTHON:-python3}
# What a step ends with that cannot run here (as in Automake).
skipped=77
# Ten minutes, less what stopping a step may take; a CPU gets more.
patience=1
[ -z "$tiny" ] || patience=10
deadline=$(($(date +%s) + 590 * patience))
has_device=1 failures=0

rm -rf "$results"
mkdir -p "$results" || exit 1

has() { command -v "$1" >/dev/null 2>&1; }

# report OUTCOME NAME SECONDS TEXT
report() {
    printf '%s  %-13s %4s s  %s\n' "$@"
    text=$(printf %s "$4" | tr -d '[:cntrl:]' | sed 's/[\\"]/\\&/g')
    printf '{"step":"%s","outcome":"%s","seconds":%s,"text":"%s"}\n' "$2" "$1" "$3" "$text" >> "$results/steps.jsonl"
    [ "$1" != FAIL ] || failures=$((failures + 1))
}

# step NAME LIMIT_S COMMAND...: what the command prints goes to NAME.log, its last line to the report.
step() {
    name=$1 limit=$(($2 * patience))
    shift 2
    left=$((deadline - $(date +%s)))
    if [ "$has_device" = 0 ]; then
        report SKIP "$name" 0 "there is no device to run it on"
        return 1
    fi
    if [ "$left" -lt 5 ]; then
        report SKIP "$name" 0 "the ten minutes are over"
        return 1
    fi
    [ "$limit" -le "$left" ] || limit=$left
    started=$(date +%s)
    timeout -k 5 "$limit" "$@" > "$results/$name.log" 2>&1
    code=$?
    took=$(($(date +%s) - started))
    last=$(grep -v '^[[:space:]]*$' "$results/$name.log" | tail -n 1)
    measured=$(grep -c '^{"what":' "$results/$name.log")
    [ "$measured" = 0 ] || last="$measured measurements"
    case $code in
        0) report PASS "$name" "$took" "$last" ;;
        "$skipped") report SKIP "$name" "$took" "$last" ;;
        124 | 137) report FAIL "$name" "$took" "it took longer than $limit s" ;;
        *) report FAIL "$name" "$took" "${last:-it ended with $code and said nothing}" ;;
    esac
    return "$code"
}

# For steps that need what may not be here: `skip NAME REASON`.
skip() { step "$1" 5 sh -c 'echo "$1"; exit "$2"' sh "$2" "$skipped"; }

# compare NAME LIMIT_S REFERENCE
compare() {
    if [ ! -s "$results/answers.json" ]; then
        skip "$1" "there are no answers to compare"
    elif has "$python"; then
        step "$1" "$2" "$python" "$here/compare.py" "$1" "$results/answers.json" "$3"
    else
        skip "$1" "there is no $python"
    fi
}

checks() {
    step probe 30 "$bench" probe || has_device=0
    if [ -x "$here/numerics" ]; then
        step numerics 150 env WEIR_CUDA=real "$here/numerics" --skip sanitizers:: --test-threads=1
    else
        skip numerics "the tests of the kernels are not in this folder"
    fi
    step graphs 30 "$bench" graphs $tiny
    if [ -f "$model" ]; then
        step answers 40 "$bench" answers $tiny --model "$model" --prompts "$here/golden.json" --out "$results/answers.json"
    else
        skip answers "${model##*/} is not in this folder"
    fi
    compare golden 20 "$here/golden.json"
    compare transformers 90 "$model"
    for tool in memcheck racecheck; do
        if has compute-sanitizer; then
            step $tool 60 compute-sanitizer --tool $tool --error-exitcode 9 "$bench" graphs --tiny
        else
            skip $tool "compute-sanitizer is not installed"
        fi
    done
}

measurements() {
    step attention 40 "$bench" attention $tiny
    step products 60 "$bench" products $tiny
    step tokens_bf16 90 "$bench" tokens --weights bf16 $tiny
    step tokens_q4_0 90 "$bench" tokens --weights q4_0 $tiny
}

# The results for people.
summary() {
    echo "# Weir on a GPU"
    echo
    echo "$(sed -n 1p "$results/probe.log" 2>/dev/null), $(date -u +%Y-%m-%d)"
    [ -z "$tiny" ] || printf '\nShapes were tiny: no time means anything.\n'
    printf '\n| step | outcome | seconds | |\n| --- | --- | --- | --- |\n'
    sed 's/{"step":"\(.*\)","outcome":"\(.*\)","seconds":\(.*\),"text":"\(.*\)"}/| \1 | \2 | \3 | \4 |/' "$results/steps.jsonl"
    [ -s "$results/measurements.jsonl" ] || return
    printf '\n| measured | rate | bound | share of the bound | microseconds |\n| --- | --- | --- | --- | --- |\n'
    sed 's/{"what":"\(.*\)","value":\(.*\),"unit":"\(.*\)","bound":\(.*\),"share":\(.*\),"microseconds":\(.*\)}/| \1 | \2 \3 | \4 | \5 | \6 |/' \
        "$results/measurements.jsonl"
}

checks
measurements
cat "$results"/*.log | grep '^{"what":' > "$results/measurements.jsonl"
summary > "$results/results.md"
echo "results: $results/results.md, and the output of each step beside it"
[ "$failures" = 0 ]
