#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# current_test.sh HASHES...: the precompiled headers were made from the system's headers as they are.
set -uo pipefail
status=0
for hashes in "$@"; do
  [[ -s "$hashes" ]] || { echo "$hashes: nothing is precompiled in this build"; continue; }
  # Few headers would mean that the list is not what was compiled.
  [[ $(wc -l < "$hashes") -gt 300 ]] || { echo "$hashes: must list over 300 headers, got $(wc -l < "$hashes")"; status=1; }
  sha256sum --quiet --check "$hashes" || {
    echo "$hashes: a header has changed since it was precompiled; make it new by bazel clean, then build once with --disk_cache="
    status=1
  }
done
exit "$status"
