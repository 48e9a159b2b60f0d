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

say "format: all sources"
tools/check_format.sh "$@" || failures=$((failures + 1))

say "coverage: docs/internals/coverage.md"
tools/coverage.py --check || failures=$((failures + 1))

say "environment: docs/environment.md"
tools/environment.py --check || failures=$((failures + 1))

say "build: everything, warnings as errors (tools/copts.bzl)"
bazel build --noshow_progress //... || failures=$((failures + 1))

say "alone: headers with nothing in front of them, sources without what is precompiled"
tools/check_alone.sh || failures=$((failures + 1))

say "includes: arrows between folders, direct includes"
tools/check_includes.py || failures=$((failures + 1))

tools/compile_commands.py || failures=$((failures + 1))
[[ $failures -eq 0 ]] && say "presubmit: ok" || say "presubmit: $failures problem(s)"
[[ $failures -eq 0 ]]
