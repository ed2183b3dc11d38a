#!/usr/bin/env bash
# Everything the project builds and tests with, from Debian 12. Run as root (or through sudo).
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
packages=(
  build-essential cmake ninja-build git python3
  nlohmann-json3-dev libcli11-dev libfmt-dev libpcre2-dev zlib1g-dev libboost1.81-dev
  libgtest-dev libbenchmark-dev libcpp-httplib-dev
  clang libclang-rt-14-dev clang-format clang-tidy
)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "all ${#packages[@]} packages are installed"
  exit 0
fi
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
