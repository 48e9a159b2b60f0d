#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests on a busy machine: three times, next to loops that keep all processors busy. A test
# that fails here and passes alone is wrong in how it waits.
#
# Usage: tools/test_busy.sh [--loops N] [--runs N] [bazel flags and targets]
#   --loops N     busy loops next to the tests (two for each processor)
#   --runs N      how often the tests run (3)
set -uo pipefail
source "$(dirname "$0")/program.sh"

loops=$((2 * $(nproc)))
runs=3
arguments=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --loops | --runs)
      [[ $# -gt 1 ]] || wrong_arguments "argument $1: expected one argument"
      [[ "$2" =~ ^[1-9][0-9]{0,2}$ ]] ||
        wrong_arguments "argument $1: must be a number from 1 to 999, got '$2'"
      if [[ "$1" == --loops ]]; then loops=$2; else runs=$2; fi
      shift
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
cd "$(dirname "$0")/.."

# Built before the machine is busy; targets are words without a dash in front.
tools/install_deps.sh
targets=()
flags=()
for word in "${arguments[@]}"; do
  if [[ "$word" == -* ]]; then flags+=("$word"); else targets+=("$word"); fi
done
cache=$(tools/disk_cache.py path)
bazel build ${cache:+"--disk_cache=$cache"} --build_tests_only --noshow_progress "${flags[@]}" -- \
  "${targets[@]:-//...}" || exit 1
busy=()
trap 'kill "${busy[@]}" 2>/dev/null' EXIT
for ((i = 0; i < loops; ++i)); do
  (while :; do :; done) &
  busy+=($!)
done
failed=0
for ((run = 1; run <= runs; ++run)); do
  echo "== Run $run of $runs next to $loops busy loops"
  tools/test.sh --keep_going --noshow_progress --test_output=errors "${arguments[@]}" ||
    failed=$((failed + 1))
done
echo "test_busy: $((runs - failed)) of $runs runs passed"
[[ $failed -eq 0 ]]
