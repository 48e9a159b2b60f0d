#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The key of the system's compiler and headers, for --workspace_status_command: precompiled headers
# are made again when it changes.
echo "STABLE_SYSTEM_HEADERS $("$(dirname "$0")/disk_cache.py" key)"
