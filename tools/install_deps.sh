#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Millrace is built from: Debian packages only. Does nothing when they are there.
#
# Usage: tools/install_deps.sh [--dev | --format | --outside]
#   --dev adds the tools of tools/presubmit.sh, --format what .ci/run needs of them, --outside the
#   programs of tests/serving/outside_clients.sh, some of which Debian starts as services.
set -euo pipefail
source "$(dirname "$0")/program.sh"

packages=(
  g++ bazel-bootstrap pkg-config python3
  libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libgrpc++-dev
  libtbb-dev libeigen3-dev libabsl-dev libdnnl-dev libmicrohttpd-dev
  libsnappy-dev zlib1g-dev libpng-dev libleveldb-dev libfarmhash-dev libre2-dev
  libgoogle-glog-dev nlohmann-json3-dev rapidjson-dev libssl-dev libzip-dev openssl
  libcurl4-openssl-dev libpugixml-dev libyaml-cpp-dev
  libgtest-dev libgmock-dev libbenchmark-dev cmake
)
if [[ $# -eq 1 && "$1" == "--dev" ]]; then
  packages+=(clang-16 clang-format-16 clang-tidy-16 clangd-16)
elif [[ $# -eq 1 && "$1" == "--format" ]]; then
  packages+=(clang-format-16)
elif [[ $# -eq 1 && "$1" == "--outside" ]]; then
  packages+=(curl nginx-light haproxy prometheus python3-grpcio python3-protobuf)
  # Node.js may come with its npm from elsewhere.
  command -v node >/dev/null || packages+=(nodejs)
  command -v npm >/dev/null || packages+=(npm)
elif [[ $# -gt 0 ]]; then
  wrong_arguments "unrecognized arguments: $1"
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ "$status" == "install ok installed" ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

root=()
if [[ $(id -u) -ne 0 ]]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    root=(sudo)
  elif command -v sudo >/dev/null && [[ -t 0 ]]; then
    root=(sudo)
  else
    echo "install_deps.sh: packages are missing and there is no way to become root; run as root:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi

echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q)
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; }; then
  echo "install_deps.sh: apt-get did not succeed; the line that it should run is:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
