#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the format of all sources (.clang-format); exit code 1 and their names when some differ.
#
# Usage: tools/check_format.sh [--fix]     --fix formats them
set -uo pipefail
source "$(dirname "$0")/program.sh"
[[ $# -eq 0 || ( $# -eq 1 && "$1" == "--fix" ) ]] || wrong_arguments "unrecognized arguments: $*"
cd "$(dirname "$0")/.."

format=$(command -v clang-format-16 || true)
if [[ -z "$format" ]]; then
  echo "format: clang-format-16 is not installed; tools/install_deps.sh --format"
  exit 1
fi
if [[ "${1:-}" == "--fix" ]]; then
  git ls-files -z '*.cc' '*.h' | xargs -0 "$format" -i
  exit
fi
unformatted=$(git ls-files -z '*.cc' '*.h' | xargs -0 -n 20 -P "$(nproc)" "$format" --dry-run 2>&1 |
  sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning: .*-Wclang-format-violations.*/\1/p' | sort -u)
[[ -z "$unformatted" ]] && exit 0
sed 's/^/format: /; s/$/; tools\/check_format.sh --fix/' <<<"$unformatted"
exit 1
