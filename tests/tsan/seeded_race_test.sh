#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Passes when ThreadSanitizer reports the race of seeded_race; says so and passes in builds
# without it. Usage: seeded_race_test.sh <program>
set -u
output=$(TSAN_OPTIONS="exitcode=66 halt_on_error=0" "$1" 2>&1)
code=$?
if [[ $code -eq 0 && "$output" == skipped:* ]]; then
  echo "$output"
  exit 0
fi
if [[ $code -ne 66 ]]; then
  echo "the race was not reported: exit code $code"
  echo "$output"
  exit 1
fi
for text in "WARNING: ThreadSanitizer: data race" "AddWithoutLock"; do
  if [[ "$output" != *"$text"* ]]; then
    echo "the report lacks '$text'"
    echo "$output"
    exit 1
  fi
done
echo "the race was reported"
