#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is needed, builds everything and runs the tests.
#
# Usage: tools/test.sh [bazel flags and targets]     default target: //...
# Tests that compare with files of TensorFlow look for them below $MILLRACE_SHARED (or
# ../shared next to the checkout) and report themselves as skipped where there are none.
# What is compiled is kept for other clones (tools/disk_cache.py), --disk_cache= builds without;
# tests are run, whatever the cache has of them.
set -euo pipefail
source "$(dirname "$0")/program.sh"
cd "$(dirname "$0")/.."
tools/install_deps.sh

flags=()
targets=()
for word in "$@"; do
  case "$word" in
    -*) flags+=("$word") ;;
    *) targets+=("$word") ;;
  esac
done
[[ ${#targets[@]} -gt 0 ]] || targets=(//...)
shared="${MILLRACE_SHARED:-$PWD/../shared}"
if [[ -d "$shared" ]]; then
  flags+=("--test_env=MILLRACE_SHARED=$(cd "$shared" && pwd)")
fi
cache=$(tools/disk_cache.py path)
status=0
bazel test ${cache:+"--disk_cache=$cache"} --nocache_test_results "${flags[@]}" -- "${targets[@]}" || status=$?
tools/disk_cache.py trim || true
exit "$status"
