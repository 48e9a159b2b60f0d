#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mnist_dist, mnist_monitored and mnist_predict_meta: the page's commands as they stand there, then
# one process without TF_CONFIG that goes on, and what is refused.
# Arguments: the page's commands, then the programs.

# covers: programs: the commands of the pages of `examples/mnist` and `examples/linreg` do what the
#   pages say
# covers: article 2-1: asynchronous data parallel training without an Estimator
# covers: article 2-2: steps are of all tasks together; each says its share
# covers: article 2-3: parameter server, worker, master are one program
# covers: article 2-6: without TF_CONFIG one process does everything
# covers: article 2-8: `Join` until a signal, exit code 0; leaves by itself when the run has ended
# covers: article 2-12: a managed session, `ShouldStop`, a loop to a step; the end of data is a
#   clean end
# covers: article 2-13: the global step is fetched with the update, before or after it
# covers: article 2-14: each task reports every 100 steps, the chief saves and judges
# covers: article 2-15: the chief judges all test images while the others train on; an evaluator
#   does better
# covers: article 2-16: save by hand, summaries by hand, flush, stop
# covers: article 2-19: collections `inputs` and `outputs` with JSON, `export.meta` and `export.*`,
#   the key passed through
# covers: article 2-21: flags; batches that do not divide the data
# covers: article 2-28: event files that TensorBoard reads: version, scalar, histogram, graph,
#   session log
# covers: article 2-29: the prediction program: import, restore, collections, feed key and image
# covers: article 2-30: scalars Test_loss (sum) and Test_accuracy (mean)
# covers: scenario F13: local prediction
# covers: scenario F24: MNIST without an Estimator

set -euo pipefail
source examples/commands_of_page.sh "$@"

# The page.
run_page
for chief in master chief; do
  for task in "ps 0" "$chief 0" "worker 0" "worker 1"; do
    expect "^launch: $task +exit 0 "
  done
done
[[ $(grep -c 'job ended with code 0' out.txt) == 2 ]] || fail "two jobs must end well"
# The steps of all tasks are those of the job. Each may have one under way when the last is done,
# whose fetched number is that of before it, and so do one more.
for job in 1 2; do
  did=$(($(grep -oE 'This task did [0-9]+ steps' out.txt | sed -n "$((3 * job - 2)),$((3 * job))p" |
    grep -oE '[0-9]+' | paste -sd+)))
  [[ "$did" -ge 60 && "$did" -le 66 ]] || fail "job $job must do 60 steps, and did $did"
done
[[ $(grep -cE '^[0-9]+ of 10 right$' out.txt) == 2 ]] || fail "two predictions of ten"
# Each trainer reports, the chief judges and saves.
for name in master-0 worker-0 worker-1; do
  grep -qE 'Step: [0-9]+, Train loss: [0-9.]+' "logs/$name.log" || fail "no report of $name"
done
grep -qE 'Step: [0-9]+, Test loss: [0-9.]+, Test accuracy: 0\.[0-9]+' logs/master-0.log ||
  fail "no score of the master"
grep -q 'Test loss' logs/worker-0.log && fail "a worker must not judge"
grep -q '/job:' model/export.meta && fail "the export names tasks of the cluster"
for run in run run2; do
  inspect_events "$run" >events.txt
  for tag in Test_loss Test_accuracy conv_filters1 conv_filters2; do
    grep -qw "$tag" events.txt || { cat events.txt; fail "$run has no summaries of $tag"; }
  done
  ls "$run"/model.ckpt-*.index >/dev/null || fail "$run has no checkpoint"
done

# One process, a batch that divides nothing; then further, from where it ended.
for program in mnist_dist mnist_monitored; do
  dir=alone_$program
  "$program" --max_steps=6 --checkpoint=3 --batch_size=37 --log_dir="$dir" --model_dir="$dir/model" \
    >out.txt 2>&1 || fail "$program alone"
  expect 'This task did [67] steps'
  "$program" --max_steps=8 --checkpoint=3 --batch_size=37 --log_dir="$dir" --model_dir="$dir/model2" \
    >out.txt 2>&1 || fail "$program goes on"
  expect 'restored'
  expect 'This task did [123] steps'
  mnist_predict_meta --model_dir="$dir/model2" --count=25 >out.txt 2>&1 || fail "predict"
  expect '^[0-9]+ of 25 right$'
  if "$program" --batch_size=0 >out.txt 2>&1; then fail "--batch_size=0 must be refused"; fi
  expect '--batch_size: must be >= 1, got 0'
done
if mnist_predict_meta --model_dir=nowhere >out.txt 2>&1; then fail "a missing model"; fi
expect 'nowhere/export.meta'
