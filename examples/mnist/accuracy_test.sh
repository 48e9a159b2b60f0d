#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Test accuracy of the digit network: the median of three seeds must reach a bound; all are printed.
# MNIST's own files where MILLRACE_SHARED has them, drawn digits otherwise. Slow: run by hand.
# Arguments: launch, the program, "cluster" or "alone", steps, the least median (of real digits).

# covers: article 2-23: the network with the article's initial values, histograms of both filters

set -euo pipefail
launch=$1
train=$2
mode=$3
steps=$4
bound=$5
data="${MILLRACE_SHARED:-}/data/mnist"
[[ -d "$data" ]] || { data=""; echo "no MNIST files: drawn digits"; }

accuracies=()
for seed in 1 2 3; do
  dir=$TEST_TMPDIR/$seed
  program=("$train" --max_steps="$steps" --checkpoint="$steps" --seed="$seed" --data="$data"
    --log_dir="$dir/train" --model_dir="$dir/model")
  [[ "$mode" == alone ]] || program=("$launch" --ps=1 --master --workers=2 -- "${program[@]}")
  "${program[@]}" >"$TEST_TMPDIR/$seed.log" 2>&1 || { tail -50 "$TEST_TMPDIR/$seed.log"; exit 1; }
  accuracies+=("$(sed -n 's/.*Test accuracy: \([0-9.]*\).*/\1/p' "$TEST_TMPDIR/$seed.log" | tail -1)")
  echo "$mode, $steps steps, seed $seed: test accuracy ${accuracies[-1]}"
done
median=$(printf '%s\n' "${accuracies[@]}" | sort -n | sed -n 2p)
echo "median $median, at least $bound"
python3 -c "import sys; sys.exit(float('$median') < float('$bound'))"
