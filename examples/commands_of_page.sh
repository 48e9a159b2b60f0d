# SPDX-License-Identifier: Apache-2.0
# For tests of a page's commands that look at more than what is printed (tools/page_commands.py is for
# the others). Sourced with the arguments of the test: the page's commands, then the programs that
# they call by their names. The shell is in a new folder then, with the programs in its PATH.
commands=$PWD/$1
shift
mkdir -p "$TEST_TMPDIR/bin" "$TEST_TMPDIR/work"
for program in "$@"; do ln -s "$PWD/$program" "$TEST_TMPDIR/bin/"; done
export PATH="$TEST_TMPDIR/bin:$PATH"
unset TF_CONFIG
cd "$TEST_TMPDIR/work"

# What commands print goes to out.txt.
fail() {
  echo "FAILED: $*" >&2
  cat out.txt >&2
  exit 1
}
expect() { grep -qE -- "$1" out.txt || fail "no line has: $1"; }
run_page() { bash -euo pipefail "$commands" >out.txt 2>&1 || fail "the commands of the page"; }
