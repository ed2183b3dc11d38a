#!/usr/bin/env bash
# Compiles every CUDA source for the architectures that releases are built for (or those given) and lists registers and
# spills; needs nvcc and no device.
#   scripts/cuda-architectures.sh [90a 100a 120a 121a]
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=("$@")
[ ${#architectures[@]} -gt 0 ] || architectures=(90a 100a 120a 121a)
out=${CUDA_OBJECTS:-build/cuda-architectures}
mkdir -p "$out"
export out
compile() {
  local architecture=$1 source=$2
  local object="$out/$(basename "$source" .cu).$architecture"
  nvcc -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Isrc -gencode="arch=compute_$architecture,code=sm_$architecture" \
    -Xptxas -v -c -o "$object.o" "$source" > "$object.log" 2>&1 || { tail -n 20 "$object.log"; return 1; }
}
export -f compile
for architecture in "${architectures[@]}"; do
  start=$SECONDS
  printf '%s\n' src/ops/cuda/*.cu | xargs -P "$(nproc)" -I{} bash -c 'compile "$0" "$1"' "$architecture" {}
  echo "$architecture: $(ls src/ops/cuda/*.cu | wc -l) sources in $((SECONDS - start)) s; most registers" \
    "$(cat "$out"/*."$architecture".log | grep -oE 'Used [0-9]+ registers' | grep -oE '[0-9]+' | sort -n | tail -n 1)"
done
