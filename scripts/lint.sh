#!/usr/bin/env bash
# clang-format on every source file, clang-tidy on those of src/ that the release build compiles.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
cmake --preset release >/dev/null
list='import json, os
files = {os.path.relpath(entry["file"]) for entry in json.load(open("build/release/compile_commands.json"))}
print("\n".join(sorted(name for name in files if name.startswith("src/"))))'
mapfile -t sources < <(python3 -c "$list")
printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 2 clang-tidy --quiet -p build/release
echo "format and tidy are clean: ${#sources[@]} sources"
