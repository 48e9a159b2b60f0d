#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wide and deep model learns on 1 ps + 2 workers (UCI's people where MILLRACE_SHARED has them,
# drawn ones otherwise), and what the chief exports runs without the cluster.
# Arguments: launch, wide_deep_train, saved_model_cli.

# covers: training: the examples learn, continue, export and predict; their models stay short

set -euo pipefail
launch=$1
train=$2
cli=$3
data="${MILLRACE_SHARED:-}/data/census"
least=0.80 # of UCI's test people 76 % earn less than 50,000
[[ -d "$data" ]] || { data=""; least=0.75; echo "no census files: drawn people"; }

"$launch" --ps=1 --workers=2 -- "$train" --steps=2000 --data="$data" --dir="$TEST_TMPDIR/run" \
  --export_to="$TEST_TMPDIR/income" >"$TEST_TMPDIR/log" 2>&1 || { cat "$TEST_TMPDIR/log"; exit 1; }
accuracy=$(sed -n 's/.*test accuracy: \([0-9.]*\).*/\1/p' "$TEST_TMPDIR/log" | tail -1)
echo "test accuracy $accuracy, at least $least"
python3 -c "import sys; sys.exit(float('$accuracy') < float('$least'))"

person='categories=[[0,100,200,300,400,500,600,700]];crosses=[[0,1000]];numbers=[[0.4,0.8,0,0,0.4]]'
"$cli" run --dir "$TEST_TMPDIR/income" --tag_set serve --signature_def serving_default \
  --input_exprs "$person" | tee "$TEST_TMPDIR/predicted.txt"
grep -q 'Result for output key probability' "$TEST_TMPDIR/predicted.txt"
