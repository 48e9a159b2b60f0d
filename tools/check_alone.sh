#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that headers compile alone, with nothing in front of them, and sources without what is
# precompiled (third_party/precompiled): each includes what it uses. Needs a build of what is
# generated. The front end alone: seconds a file.
#
# Usage: tools/check_alone.sh [--headers] [--since REV]
#   --headers     headers only
#   --since REV   files that differ from REV; all without
set -uo pipefail
source "$(dirname "$0")/program.sh"
since=""
patterns=('*.h' '*.cc')
while [[ $# -gt 0 ]]; do
  case "$1" in
    --headers) patterns=('*.h') ;;
    --since)
      [[ $# -gt 1 ]] || wrong_arguments "argument --since: expected one argument"
      since=$2
      shift
      ;;
    *) wrong_arguments "unrecognized arguments: $1" ;;
  esac
  shift
done
cd "$(dirname "$0")/.."

if [[ -z "$since" ]]; then
  mapfile -t files < <(git ls-files "${patterns[@]}")
elif git rev-parse --quiet --verify "$since^{commit}" >/dev/null; then
  mapfile -t files < <(git diff --name-only --diff-filter=d "$since" -- "${patterns[@]}")
else
  wrong_arguments "argument --since: must be a commit, got '$since'"
fi
[[ ${#files[@]} -gt 0 ]] || exit 0

generated=$(bazel info bazel-bin 2>/dev/null)
compile_alone() {
  local standard=c++20 errors
  [[ "$2" != *_cxx17_test.cc ]] || standard=c++17
  errors=$(g++ -std=$standard -march=x86-64-v3 -fsyntax-only -x c++ -Wall -Wextra -Wconversion \
    -Wsign-conversion -Wno-restrict -Werror -I. -isystem "$1" -isystem /usr/include/eigen3 "$2" 2>&1)
  local status=$?
  [[ $status -eq 0 ]] || printf 'alone: %s\n%s\n' "$2" "$(head -5 <<<"$errors")"
  return $status
}
export -f compile_alone
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" bash -c 'compile_alone "$0" "$1"' "$generated"
