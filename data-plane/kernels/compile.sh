#!/bin/sh
# Compiles the CUDA kernels ahead of time (machine code for sm_80 and sm_90a, PTX for what comes later) into
# <repo>/.build/cuda/kernels.fatbin, which the crate's build script then takes in. Refuses them if
# - a kernel spills registers to memory,
# - a kernel uses another number of registers than registers.txt beside this script says, or is missing there,
# - a matrix product or an attention kernel has no tensor-core instruction in its machine code.
# Does nothing when the sources have not changed.
set -eu
# Files in the order in which the build script has them, too.
LC_ALL=C
export LC_ALL

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
sources="$here/src/cuda/kernels"
out="$repo/.build/cuda"

say() { printf 'kernels: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

bin=$("$repo/deploy/setup/nvcc.sh")
mkdir -p "$out"
stamp=$(cat "$0" "$repo/deploy/setup/nvcc.sh" "$here/registers.txt" "$sources"/*.cu "$sources"/*.cuh | sha256sum)
if [ -f "$out/kernels.fatbin" ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
rm -f "$out/stamp" "$out/kernels.fatbin"

# One source, so that the result is one module.
for source in "$sources"/*.cu; do printf '#include "%s"\n' "$source"; done > "$out/kernels.cu"
say "compiling"
"$bin/nvcc" -std=c++17 -fatbin --threads 2 -Xptxas -v \
    -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80 \
    -o "$out/new.fatbin" "$out/kernels.cu" > "$out/log" 2>&1 || { cat "$out/log" >&2; die "nvcc failed"; }

# "architecture kernel registers", from ptxas's lines: an entry, then its spills, then its registers.
awk -v quote="'" '
    /Compiling entry function/ { split($0, part, quote); kernel = part[2]; arch = part[4] }
    /spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ { print arch, kernel, "spills:", $0 > "/dev/stderr"; bad = 1 }
    / Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") print arch, kernel, $(i + 1) }
    END { exit bad }
' "$out/log" > "$out/unsorted" || die "registers are spilled"
LC_ALL=C sort "$out/unsorted" > "$out/registers.txt"
diff -u "$here/registers.txt" "$out/registers.txt" >&2 ||
    die "registers have changed: if that is meant, copy $out/registers.txt to $here"

PATH="$bin:$PATH" cuobjdump -sass "$out/new.fatbin" | awk '
    /^arch = / { arch = $3 }
    /Function : / { kernel = arch " " $3; if ($3 ~ /^(matmul|attention_decode|attention_prefill)_/) wanted[kernel] = 1 }
    /HMMA/ { found[kernel] = 1 }
    END {
        for (kernel in wanted) { count++; if (!(kernel in found)) { print kernel > "/dev/stderr"; bad = 1 } }
        exit bad || count == 0
    }
' || die "these kernels do not use the tensor cores"

# The build takes the machine code in only if it is of the sources that it sees.
cat "$sources"/*.cu "$sources"/*.cuh > "$out/sources"
mv "$out/new.fatbin" "$out/kernels.fatbin"
echo "$stamp" > "$out/stamp"
say "compiled, with the registers, the spills and the tensor cores as they should be: $out/kernels.fatbin"
