#!/usr/bin/env bash
# clang-format on every source file, clang-tidy on those of the compilation database that belong to src/.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
cmake --preset release >/dev/null
mapfile -t sources < <(git ls-files 'src/*.cc')
printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 4 clang-tidy --quiet -p build/release
echo "format and tidy are clean: ${#sources[@]} sources"
