#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The click model reaches the same held-out loss on 2 ps + 2 workers as in one process (± 2 %).
# Arguments: the launcher, the program.

# covers: clusters: the same loss on one process and on 2 ps + 2 workers

set -euo pipefail
launch=$1
program=$2
flags=(--max_steps=1500)

held_out_loss() { sed -n 's/.*Held-out loss: \([0-9.]*\).*/\1/p'; }

alone=$("$program" "${flags[@]}" 2>/dev/null | held_out_loss)
"$launch" --ps=2 --workers=2 -- "$program" "${flags[@]}" >"$TEST_TMPDIR/cluster.log" 2>&1 ||
  { cat "$TEST_TMPDIR/cluster.log"; exit 1; }
together=$(held_out_loss <"$TEST_TMPDIR/cluster.log")
echo "one process: $alone, 2 ps + 2 workers: $together"
python3 - "$alone" "$together" <<'PY'
import sys
alone, together = map(float, sys.argv[1:])
assert 0.3 < alone < 0.67, f"the model must have learned something, got loss {alone}"
assert abs(together - alone) <= 0.02 * alone, f"losses differ by more than 2 %: {alone} {together}"
PY
