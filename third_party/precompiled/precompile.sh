#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# precompile.sh HASHES OUT COMPILER FLAG...: compiles a header and writes the SHA-256 of each header
# that went into it, for current_test.
set -euo pipefail
hashes=$1
out=$2
shift 2
"$@" -MD -MF "$out.d"
sed -e 's/^[^:]*://' -e 's/\\$//' "$out.d" | tr -s ' ' '\n' | grep '^/' | sort -u | xargs sha256sum > "$hashes"
rm "$out.d"
