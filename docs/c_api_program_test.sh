#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program of docs/c_api.md fits its line, and says so; it fails with a message where it cannot write.

# covers: c api: the program of the page runs unchanged

set -euo pipefail
out=$("$1" "$TEST_TMPDIR")
echo "$out"
[[ "$out" == *"w = 3.000, prediction for 10: 29.000"* ]]
if "$1" /dev/null/nowhere 2>"$TEST_TMPDIR/error"; then
  echo "a directory that cannot be must be an error"
  exit 1
fi
cat "$TEST_TMPDIR/error"
grep -q nowhere "$TEST_TMPDIR/error"
