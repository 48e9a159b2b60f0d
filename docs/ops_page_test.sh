#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs/ops.md is what the build says of its ops.
set -euo pipefail
if ! tools/list_ops --markdown | diff docs/ops.md -; then
  echo "docs/ops.md: must be what list_ops writes; bazel run //tools:list_ops -- --markdown > docs/ops.md" >&2
  exit 1
fi
