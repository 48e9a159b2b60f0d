#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# system_headers.sh: prints the key of the system's compiler and headers, for Bazel's
# --workspace_status_command:
# precompiled headers are made again when it changes.
set -euo pipefail
source "$(dirname "$0")/program.sh"
[[ $# -eq 0 ]] || wrong_arguments "unrecognized arguments: $*"
echo "STABLE_SYSTEM_HEADERS $("$(dirname "$0")/disk_cache.py" key)"
