#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Asks a model server with programs that are not ours, and skips none: installs them, builds the
# server, runs outside_clients_test.py, outside_grpc_clients_test.py and outside_proxies_test.py.
#
# Usage: tests/serving/outside_clients.sh [--no-install] [--bin DIR] [TEST...]
#
# --no-install: what is missing is a failure. --bin: DIR has tools/model_server and
# tests/serving/export_scaling; nothing is built. TEST: outside_proxies, ... (all of them).
# Packages of npm are put into OUTSIDE_NPM_DIR, or into a folder that goes afterwards.

set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
source "$root/tools/program.sh"

install=1
bin=
tests=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --no-install) install= ;;
    --bin)
      [[ $# -gt 1 ]] || wrong_arguments "argument --bin: expected one argument"
      bin=$2
      shift
      ;;
    --bin=*) bin=${1#--bin=} ;;
    -*) wrong_arguments "unrecognized arguments: $1" ;;
    *)
      [[ -f "$root/tests/serving/${1}_test.py" ]] || wrong_arguments "unrecognized arguments: $1"
      tests+=("$1")
      ;;
  esac
  shift
done
[[ ${#tests[@]} -gt 0 ]] || tests=(outside_clients outside_grpc_clients outside_proxies)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
npm=$(realpath -m "${OUTSIDE_NPM_DIR:-$dir/npm}")
[[ -z "$bin" ]] || bin=$(realpath -m "$bin")
cd "$root"
export OUTSIDE_ALL=1 OUTSIDE_NPM_DIR=$npm TEST_TMPDIR
if [[ -n "$install" ]]; then
  tools/install_deps.sh --outside
  python3 tests/serving/outside_programs.py "$OUTSIDE_NPM_DIR"
fi
if [[ -z "$bin" ]]; then
  cache=$(tools/disk_cache.py path)
  bazel build ${cache:+"--disk_cache=$cache"} -- //tools:model_server //tests/serving:export_scaling
  bin=bazel-bin
fi

# Debian's Python is the one with Debian's packages.
python=/usr/bin/python3
status=0
for test in "${tests[@]}"; do
  echo "== $test"
  TEST_TMPDIR=$dir/$test
  mkdir "$TEST_TMPDIR"
  OUTSIDE_BIN=$bin PYTHONDONTWRITEBYTECODE=1 "$python" "tests/serving/${test}_test.py" || status=1
done
exit "$status"
