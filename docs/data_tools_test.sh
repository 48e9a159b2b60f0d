#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of docs/data_tools.md do what the page says, one after the other.
# Arguments: the commands, the programs that they call.

# covers: input: the page on preparing data does what it says

set -euo pipefail
page=$PWD/$1
shift
mkdir "$TEST_TMPDIR/bin" "$TEST_TMPDIR/work"
for program in "$@"; do ln -s "$PWD/$program" "$TEST_TMPDIR/bin/$(basename "$program")"; done
export PATH="$TEST_TMPDIR/bin:$PATH"
cd "$TEST_TMPDIR/work"
bash -euxo pipefail "$page"
