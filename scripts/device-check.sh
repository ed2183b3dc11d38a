#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a device and little else (a compiler, CMake, ninja, nvcc; no network).
#   scripts/device-check.sh pack      here: gathers the headers and libraries that the build needs in build/device (3 MB),
#                                     to be carried with the source tree
#   scripts/device-check.sh run [OUT] there: builds, runs the tests labelled cuda, prints a table; logs go to OUT
#   scripts/device-check.sh sanitize [OUT] there: the tiny models under compute-sanitizer (memcheck, then racecheck on a
#                                     build that it can follow, VERBATIM_RACECHECK; at most SECONDS_EACH, 120, a run),
#                                     with what was found by kernel. BUILT holds build/ and race/ if they are there
set -euo pipefail
cd "$(dirname "$0")/.."
carried=build/device/prefix

pack() {
  mkdir -p "$carried/include" "$carried/lib/cmake"
  cp -r /usr/include/{fmt,nlohmann,CLI,gtest,gmock} "$carried/include/"
  local libraries
  libraries=$(dirname "$(find /usr/lib -name libgtest.a | head -n 1)")
  cp "$libraries"/lib{gtest,gtest_main,gmock,gmock_main}.a "$carried/lib/"
  cp -r "$libraries/cmake/GTest" "$carried/lib/cmake/"
  # The package's paths are those of its own system; these are relative.
  sed -i 's|lib/[a-z0-9_]*-linux-gnu/|lib/|' "$carried"/lib/cmake/GTest/*.cmake
  sed -i '/get_filename_component(_IMPORT_PREFIX/d; s|^# Use original install prefix.*||' \
    "$carried/lib/cmake/GTest/GTestTargets.cmake" "$carried/lib/cmake/GTest/GMockTargets.cmake"
  sed -i '1i get_filename_component(_IMPORT_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)' \
    "$carried/lib/cmake/GTest/GTestTargets.cmake" "$carried/lib/cmake/GTest/GMockTargets.cmake"
  for package in cli11 nlohmann_json fmt; do
    for place in /usr/share/cmake /usr/lib/cmake "$libraries/cmake"; do
      find "$place" -maxdepth 1 -iname "$package" -exec cp -r {} "$carried/lib/cmake/" \; 2>/dev/null || true
    done
  done
  du -sh "$carried"
}

# build DIRECTORY LOG_FOLDER TARGETS [OPTION...]
build() {
  local directory=$1 out=$2 targets=$3 start=$SECONDS
  shift 3
  export CPLUS_INCLUDE_PATH="$PWD/$carried/include"
  # Warnings of a compiler that this project is not developed with are no errors.
  mkdir -p build/device
  printf '#!/bin/sh\nexec "$@" -Wno-error\n' > build/device/launcher
  chmod +x build/device/launcher
  cmake -S . -B "$directory" -G Ninja -DCMAKE_BUILD_TYPE=Release -DVERBATIM_CORE_ONLY=ON -DVERBATIM_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-90a}" -DCMAKE_PREFIX_PATH="$PWD/$carried" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$PWD/build/device/launcher" "$@" > "$out/configure.log" 2>&1 \
    || { tail -n 30 "$out/configure.log"; exit 1; }
  # shellcheck disable=SC2086
  cmake --build "$directory" -j "$(nproc)" --target $targets > "$out/build.log" 2>&1 \
    || { grep -E "error|FAILED" -A 5 "$out/build.log" | head -n 60; exit 1; }
  echo "built $directory in $((SECONDS - start)) s on $(nproc) cores"
}

run() {
  local out=${1:-build/device/out} start
  mkdir -p "$out"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
  build build/device/build "$out" \
    "verbatim cuda_ops_tests cuda_model_tests cuda_device_tests cuda_engine_tests cuda_attention_tests"
  local failed=0
  for tests in cuda_device_tests cuda_model_tests cuda_ops_tests cuda_engine_tests cuda_attention_tests; do
    start=$SECONDS
    local filter="*"
    if [ $tests = cuda_model_tests ]; then filter="-Bits.FiveThousandTokens"; fi
    timeout 140 build/device/build/tests/cuda/$tests --gtest_filter="$filter" > "$out/$tests.log" 2>&1 || failed=1
    echo "== $tests, $((SECONDS - start)) s"
    grep -E "^\[  (PASSED|FAILED|SKIPPED) " "$out/$tests.log" || tail -n 5 "$out/$tests.log"
    grep -E -A 5 "Failure|what\(\)|exception" "$out/$tests.log" | cut -c 1-220 | head -n 40 || true
  done
  grep -hE "^(tiny|text|decode|mtp|nvfp4|mixed|compressed|fp8|largest)" "$out"/cuda_{device,model}_tests.log || true
  # What one card of 141 GB holds of the released model; figures of docs/performance.md.
  timeout 200 build/device/build/src/cli/verbatim bench --synthetic released --layers 45 --experts 192 --backend cuda \
    --sequences 1,4,16,0 --tokens 16 --repeats 5 --prompt-rows 8192 | tee "$out/bench.log" || failed=1
  return $failed
}

# watch TOOL TESTS OUT BINARY FILTER [OPTION...]: one run of a tool, and the kernels in which it found something.
watch() {
  local tool=$1 tests=$2 out=$3 binary=$4 filter=$5 start=$SECONDS status=0 log
  shift 5
  log="$out/$tool-$binary-$(echo "$filter $*" | tr -dc 'A-Za-z_').log"
  timeout "${SECONDS_EACH:-120}" compute-sanitizer --tool "$tool" --print-limit 10000 --error-exitcode 9 "$@" \
    "$tests/$binary" --gtest_brief=1 --gtest_filter="$filter" > "$log" 2>&1 || status=$?
  echo "== $tool, $binary $filter $*: $((SECONDS - start)) s, status $status (124: stopped); $(grep -E "SUMMARY" "$log" | tail -n 1)"
  grep -oE "[A-Za-z0-9_]+_kernel(<[^>]*>)?" <(grep -E "^=+ +(Error|Warning|and (Read|Write)|Invalid|    at)" "$log") \
    | sort | uniq -c | sort -rn | head -n 12 || true
  return $status
}

sanitize() {
  local out=${1:-build/device/out} built=${BUILT:-build/device} failed=0 kernel
  mkdir -p "$out"
  local binaries="cuda_device_tests cuda_engine_tests"
  [ -x "$built/build/tests/cuda/cuda_engine_tests" ] || build "$built/build" "$out" "$binaries"
  [ -x "$built/race/tests/cuda/cuda_engine_tests" ] || build "$built/race" "$out" "$binaries" -DVERBATIM_RACECHECK=ON
  local plain="$built/build/tests/cuda" race="$built/race/tests/cuda"
  watch memcheck "$plain" "$out" cuda_device_tests 'DeviceModel.CutsOfAShortPrompt:*FewRowsExperts*/0:Warpgroup.*' || failed=1
  watch memcheck "$plain" "$out" cuda_engine_tests 'RecordedEngine.AChain*' || failed=1
  watch racecheck "$race" "$out" cuda_device_tests '*FewRowsExperts*/0:Warpgroup.TermsAreAddedInOrder' || failed=1
  # All kernels of a step at once take minutes: one after the other, the first LAUNCHES of each.
  for kernel in $(grep -ohE "[a-z0-9_]+_kernel\(" src/ops/cuda/*.cu | tr -d '(' | sort -u); do
    watch racecheck "$race" "$out" cuda_device_tests DeviceModel.CutsOfAShortPrompt \
      --kernel-name "kns=$kernel" --launch-count "${LAUNCHES:-100}" || failed=1
  done
  return $failed
}

case "${1:-}" in
  pack) pack ;;
  sanitize) shift; sanitize "$@" ;;
  run) shift; run "$@" ;;
  *) sed -n '2,9p' "$0"; exit 2 ;;
esac
