#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Millrace and installs it for programs outside of this repository: the shared library,
# headers, packages of pkg-config and CMake, tools (docs/using_millrace.md).
#
# Usage: tools/install.sh --prefix DIR
set -euo pipefail

usage() {
  echo "usage: tools/install.sh --prefix DIR" >&2
  exit 2
}
prefix=
case "${1:-}" in
  --prefix) [[ $# -eq 2 ]] && prefix=$2 ;;
  --prefix=*) [[ $# -eq 1 ]] && prefix=${1#--prefix=} ;;
  --help) echo "usage: tools/install.sh --prefix DIR"; exit 0 ;;
esac
[[ -n "$prefix" ]] || usage
prefix=$(realpath -m "$prefix")  # from here, not from the repository
cd "$(dirname "$0")/.."

tools/install_deps.sh
bazel build --disk_cache="$(tools/disk_cache.py path)" //api:install_files
tools/install.py --prefix "$prefix" --from bazel-bin --from .
echo "Installed Millrace $(sed -n 's/^#define MILLRACE_VERSION "\(.*\)"/\1/p' core/version.h) in $prefix"
