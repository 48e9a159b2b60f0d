#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# housing: the page's commands as they stand there, then what else the program promises.
# Arguments: the page's commands, then the programs.

# covers: article 1-8: DNNLinearCombinedRegressor
# covers: article 1-12, 1-13: a function that returns an input function of a file, a mode and a
#   batch size
# covers: article 1-17: max_steps is a total: 1,800, then 200 more; nothing when it is reached
# covers: article 1-20, 1-25: LatestExporter keeps all, or the last five; one exporter, several,
#   none
# covers: scenario F7: a regressor with one more metric, 3.2 million rows
# covers: scenario F8: checkpoints: how often, how many, continuing

set -euo pipefail
source examples/commands_of_page.sh "$@"
# The value of a metric in the last line that tells an evaluation.
metric() { grep '^Evaluation: ' out.txt | tail -1 | grep -oE "(^| )$1 = [-0-9.e+]+" | grep -oE '[-0-9.e+]+$'; }

# The page.
run_page
[[ -e run/model.ckpt-2000.index ]] || fail "no checkpoint of step 2000"
[[ -e run/model.ckpt-1800.index ]] || fail "no checkpoint of step 1800"
[[ $(grep -c '^Evaluation: ' out.txt) == 2 ]] || fail "an evaluation after each run"
expect '^Evaluation: .*global_step = 1800'
expect '^Evaluation: .*global_step = 2000'
expect "Method name is: tensorflow/serving/regress"
awk -v rmse="$(metric rmse)" -v mse="$(metric average_loss)" 'BEGIN {
  d = rmse * rmse - mse; if (d < 0) d = -d; exit !(d <= 1e-4) }' ||
  fail "the square of rmse must be average_loss"
awk -v rmse="$(metric rmse)" 'BEGIN { exit !(rmse < 0.75) }' ||
  fail "the model must have learnt: its rmse must be below 0.75, got $(metric rmse)"
# eval.csv has 5,000 rows, all in one batch.
awk -v loss="$(metric loss)" -v mse="$(metric average_loss)" 'BEGIN {
  d = loss / 5000 - mse; if (d < 0) d = -d; exit !(d <= 1e-3) }' ||
  fail "loss must be the sum over the batch of all rows"
[[ $(ls run/export/exporter | grep -cE '^[0-9]{10}$') == 2 ]] || fail "an export of each run"

# What is exported predicts, from Examples.
model=$(ls -d run/export/exporter/* | tail -1)
saved_model_cli run --dir "$model" --tag_set serve --signature_def predict --input_examples \
  'examples=[{"longitude":[-122.3],"latitude":[37.8],"median_age":[30.0],"rooms":[3000.0],"population":[1500.0],"households":[500.0],"income":[6.0],"ocean":["NEAR BAY"]},{"longitude":[-117.0],"latitude":[36.0],"median_age":[10.0],"rooms":[3000.0],"population":[1500.0],"households":[500.0],"income":[1.0],"ocean":["INLAND"]}]' \
  >out.txt 2>&1 || fail "the exported model must predict"
expect '^Result for output key predictions:'
dear=$(grep -oE '\[+ *[0-9.]+' out.txt | head -1 | grep -oE '[0-9.]+')
cheap=$(grep -oE '\[+ *[0-9.]+' out.txt | tail -1 | grep -oE '[0-9.]+')
awk -v a="$dear" -v b="$cheap" 'BEGIN { exit !(a > b + 1) }' ||
  fail "a house of the bay must be dearer than one of the desert, got $dear and $cheap"

# Moved elsewhere, it is the same model.
mkdir elsewhere && mv "$model" elsewhere/model && rm -r run
saved_model_cli show --dir elsewhere/model --all >out.txt 2>&1 || fail "a moved model"
expect "signature_def\['regression'\]"

# There is nothing to do, and the log says so.
housing --data_dir=data --model_dir=again --max_steps=10 >out.txt 2>&1 || fail "ten steps"
housing --data_dir=data --model_dir=again --max_steps=10 >out.txt 2>&1 || fail "no steps"
expect 'max_steps 10 is reached'

# Wrong programs: one message, exit code 1.
if housing --data_dir=nowhere --model_dir=x --max_steps=10 >out.txt 2>&1; then fail "no data"; fi
expect 'nowhere/train.csv'
if housing --data_dir=data --model_dir=x --max_steps=0 >out.txt 2>&1; then fail "no steps"; fi
expect 'max_steps must be > 0 or none, got 0'
sed '7s/^[^,]*,/far,/' data/train.csv >bad.csv && mkdir bad && mv bad.csv bad/train.csv
cp data/eval.csv bad/
if housing --data_dir=bad --model_dir=y --max_steps=400 >out.txt 2>&1; then fail "bad data"; fi
expect 'is not a valid float: far'
