#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Millrace and installs it for programs outside of this repository: the shared library,
# headers, packages of pkg-config and CMake, tools (docs/using_millrace.md).
#
# Usage: tools/install.sh --prefix DIR
set -euo pipefail

source "$(dirname "$0")/program.sh"

prefix=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --prefix)
      [[ $# -gt 1 ]] || wrong_arguments "argument --prefix: expected one argument"
      prefix=$2
      shift
      ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    *) wrong_arguments "unrecognized arguments: $1" ;;
  esac
  shift
done
[[ -n "$prefix" ]] || wrong_arguments "the following arguments are required: --prefix"
prefix=$(realpath -m "$prefix")  # from here, not from the repository
# Said now, not when everything is built.
if ! mkdir -p "$prefix" 2>/dev/null || [[ ! -w "$prefix" ]]; then
  echo "$program: --prefix must be a folder that $(id -un) may write, got '$prefix'" >&2
  exit 1
fi
cd "$(dirname "$0")/.."

tools/install_deps.sh
bazel build --disk_cache="$(tools/disk_cache.py path)" //api:install_files
tools/install.py --prefix "$prefix" --from bazel-bin --from .
echo "Installed Millrace $(sed -n 's/^#define MILLRACE_VERSION "\(.*\)"/\1/p' core/version.h) in $prefix"
