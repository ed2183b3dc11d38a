#!/usr/bin/env bash
# Builds the fuzz targets with clang, ASan and UBSan, and runs each for the seconds given: fuzz.sh SECONDS [TARGET ...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: fuzz.sh SECONDS [TARGET ...]}
shift
cmake --preset fuzz >/dev/null
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <(sed -n 's/^verbatim_fuzz(\([a-z_]*\).*/\1/p' fuzz/CMakeLists.txt)
fi
cmake --build --preset fuzz --target "${targets[@]}"
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  seeds=()
  [ -d "fuzz/corpus/$target" ] && seeds=("fuzz/corpus/$target")
  echo "== $target, $seconds s"
  build/fuzz/fuzz/"$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -print_final_stats=1 \
    "$corpus" "${seeds[@]}" 2>&1 | grep -E 'stat::|ERROR|SUMMARY|DONE' || { echo "$target failed"; exit 1; }
done
