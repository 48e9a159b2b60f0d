#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# linreg, linreg_dist and linreg_predict: the page's commands as they stand there, then what else
# the programs promise.
# Arguments: the page's commands, then the programs.

# covers: programs: the commands of the pages of `examples/mnist` and `examples/linreg` do what the
#   pages say
# covers: article 3-1: the user touches no session, server or saver
# covers: article 3-3: train, evaluate, predict are three modes
# covers: article 3-8: y = wx + b with Adam, mean squared error, a global step
# covers: article 3-9: predictions that are one tensor: `output`
# covers: article 3-10: the metric mse
# covers: article 3-12: a generator of text rows, tab-separated, in batches of one
# covers: article 3-13: without steps: the ten rows, a checkpoint of step 10
# covers: article 3-14: a feature that no receiver reaches: exported, with a warning
# covers: article 3-15: the export returns its path
# covers: article 3-16: predictions are pulled; stopping early frees everything
# covers: article 3-27, 3-28, 3-37: prediction on a cluster: 10,000 rows by ps, chief and two
#   workers, each row once and with the values of one process, also after kills, stops and restarts;
#   all tasks leave
# covers: article 3-30: 1,000 rows, batches of one, 500 steps, evaluations of 50 steps, no delays
# covers: article 3-31: the task by flags, hosts separated by `;` or `,`
# covers: article 3-32: a launcher: ports, logs per role, exit codes, kills by recorded pid only
# covers: article 4-10, 4-17: the same program in one process and as any task
# covers: scenario F6: a user's Estimator

set -euo pipefail
source examples/commands_of_page.sh "$@"
numbers() { grep -cE '^-?[0-9.]+(e-?[0-9]+)?$' "$1" || true; }

# The page.
run_page
[[ -e alone/model.ckpt-10.index ]] || fail "ten rows must end with a checkpoint of step 10"
expect "^Evaluation: .*global_step = 10.*mse = "
expect "^Result dir: alone/test/[0-9]{10}$"
expect "outputs\['output'\] tensor_info"
expect "^W.*input_x" # no signature reaches it
[[ $(numbers out.txt) == 20 ]] || fail "ten predictions twice, got $(numbers out.txt)"
for task in "ps 0" "chief 0" "worker 0" "worker 1" "evaluator 0"; do
  expect "^launch: $task +exit 0 "
done
expect "^launch: job ended with code 0$"
steps=$(grep -oE 'This task did [0-9]+ steps' out.txt | grep -oE '[0-9]+')
[[ $(wc -w <<<"$steps") == 3 ]] || fail "three trainers must say what they did"
for own in $steps; do [[ "$own" -ge 20 ]] || fail "a trainer did $own steps, at least 20"; done
ls run/model.ckpt-5*.index >/dev/null || fail "no checkpoint of the last step"
expect "^Result for output key output:"
[[ $(grep -cE 'This task predicted 33[34] points$' out.txt) == 3 ]] || fail "three tasks must predict a third each"
expect '"rows": 1000,$'
[[ $(cat predicted/predictions-*-of-00003.jsonl | sort -u | grep -cE '^\{"id":[0-9]+,"output":-?[0-9.]+(e-?[0-9]+)?\}$') == 1000 ]] ||
  fail "each of 1,000 points must be predicted"
[[ $(cat predicted/predictions-*.jsonl | grep -oE '"id":[0-9]+' | sort -u | wc -l) == 1000 ]] || fail "an id twice"

# Started again, linreg trains on.
linreg --model_dir=alone >out.txt 2>&1 || fail "linreg again"
[[ -e alone/model.ckpt-20.index ]] || fail "it must go on to step 20"
[[ $(numbers out.txt) == 10 ]] || fail "ten predictions, got $(numbers out.txt)"

# One process that trains and evaluates: linreg_dist without a cluster.
linreg_dist --model_dir=local --max_steps=30 --row_ms=0 >out.txt 2>&1 || fail "linreg_dist alone"
expect "^This task did 30 steps$"
expect "^Evaluation: .*global_step = 30"
expect "^Result dir: local/export/line/[0-9]{10}$"
# It is done already.
linreg_dist --model_dir=local --max_steps=30 --row_ms=0 >out.txt 2>&1 || fail "linreg_dist again"
if grep -q 'This task did' out.txt; then fail "nothing is left to do"; fi

# The task by flags: a worker whose index is none of the cluster's.
if linreg_dist --ps-hosts=localhost:1 --worker-hosts='localhost:2;localhost:3' \
  --chief-hosts=localhost:4 --worker-type=worker --worker-index=2 --model_dir=flags \
  >out.txt 2>&1; then
  fail "worker 2 of 2 must be refused"
fi
expect "TF_CONFIG.*got 2"
if linreg_predict --model_dir=empty >out.txt 2>&1; then fail "no checkpoint"; fi
expect "--model_dir: must have a checkpoint, got none in 'empty'"
