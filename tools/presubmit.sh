#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What to run before a commit: format, warnings as errors, headers that compile alone, includes,
# compile_commands.json. Changes nothing but compile_commands.json; prints what is wrong.
#
# Usage: tools/presubmit.sh [--fix]     --fix formats the files that need it
set -uo pipefail
source "$(dirname "$0")/program.sh"
[[ $# -eq 0 || ( $# -eq 1 && "$1" == "--fix" ) ]] || wrong_arguments "unrecognized arguments: $*"
cd "$(dirname "$0")/.."
failures=0
say() { printf '%s\n' "$*"; }

format=$(command -v clang-format-16 || command -v clang-format || true)
mapfile -t sources < <(git ls-files '*.cc' '*.h')
if [[ -z "$format" ]]; then
  say "format: clang-format is not installed; tools/install_deps.sh --dev"
  failures=$((failures + 1))
elif [[ "${1:-}" == "--fix" ]]; then
  "$format" -i "${sources[@]}"
else
  for file in "${sources[@]}"; do
    if ! "$format" --dry-run -Werror "$file" >/dev/null 2>&1; then
      say "format: $file; tools/presubmit.sh --fix"
      failures=$((failures + 1))
    fi
  done
fi

say "build: everything, warnings as errors (tools/copts.bzl)"
bazel build --noshow_progress //... || failures=$((failures + 1))

say "headers: each compiles alone"
generated=$(bazel info bazel-bin 2>/dev/null)
compile_alone() {
  local errors
  errors=$(g++ -std=c++20 -march=x86-64-v3 -fsyntax-only -x c++ -Wall -Wextra -Wconversion \
    -Wsign-conversion -Wno-restrict -Werror -I. -isystem "$1" -isystem /usr/include/eigen3 "$2" 2>&1)
  local status=$?
  [[ $status -eq 0 ]] || printf 'header: %s\n%s\n' "$2" "$(head -5 <<<"$errors")"
  return $status
}
export -f compile_alone
git ls-files -z '*.h' |
  xargs -0 -n 1 -P "$(nproc)" bash -c 'compile_alone "$0" "$1"' "$generated" ||
  failures=$((failures + 1))

say "includes: arrows between folders, direct includes"
tools/check_includes.py || failures=$((failures + 1))

tools/compile_commands.py || failures=$((failures + 1))
[[ $failures -eq 0 ]] && say "presubmit: ok" || say "presubmit: $failures problem(s)"
[[ $failures -eq 0 ]]
