#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job, from a bare Debian machine: installs what is needed, builds, then trains a wide and
# deep model on a real cluster of processes (1 parameter server, 1 chief, 2 workers, 1 evaluator),
# evaluates and exports it, shows the export and predicts ten people. With --mnist: digits, by a
# convolutional network, on 1 ps + 1 master + 2 workers.
#
# Usage: tools/quickstart.sh [--mnist] [--data DIR] [--max_steps N] [--dir DIR]
#   --mnist          digits instead of people
#   --data DIR       the Census Income files (adult.data.csv and adult.test.csv), or MNIST's idx
#                    files (plain or .gz); otherwise the programs draw their own people and digits
#   --max_steps N    global steps of all trainers together (1000)
#   --dir DIR        where the run goes, must not exist (a new folder below quickstart_runs/)
set -euo pipefail
source "$(dirname "$0")/program.sh"
cd "$(dirname "$0")/.."

mnist=false
data=""
max_steps=1000
dir=""
while [[ $# -gt 0 ]]; do
  flag=${1%%=*}
  if [[ "$1" == --mnist ]]; then
    mnist=true
    shift
    continue
  fi
  case "$flag" in
    --data | --max_steps | --dir) ;;
    *) wrong_arguments "unrecognized arguments: $1" ;;
  esac
  if [[ "$1" == *=* ]]; then
    value=${1#*=}
  else
    [[ $# -gt 1 ]] || wrong_arguments "argument $flag: expected one argument"
    value=$2
    shift
  fi
  shift
  case "$flag" in
    --data) data=$value ;;
    --max_steps) max_steps=$value ;;
    --dir) dir=$value ;;
  esac
done
[[ "$max_steps" =~ ^[1-9][0-9]{0,17}$ ]] ||
  wrong_arguments "argument --max_steps: must be a number >= 1, got '$max_steps'"
[[ -z "$data" || -d "$data" ]] || wrong_arguments "argument --data: must be a directory, got '$data'"
if [[ -n "$data" && $mnist == false ]]; then
  for file in adult.data.csv adult.test.csv; do
    [[ -f "$data/$file" ]] ||
      wrong_arguments "argument --data: must have $file and, with --mnist, idx files, got '$data'"
  done
fi
[[ -z "$data" ]] || data=$(cd "$data" && pwd)
if [[ -z "$dir" ]]; then
  mkdir -p quickstart_runs
  dir=$(mktemp -d "quickstart_runs/run_XXXXXX")
elif [[ -e "$dir" ]]; then
  wrong_arguments "argument --dir: must not exist, got '$dir'"
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
bin=bazel-bin

# build TARGET...
build() {
  echo "== Building"
  local cache
  cache=$(tools/disk_cache.py path)
  bazel build ${cache:+"--disk_cache=$cache"} "$@" //tools:launch //tools:saved_model_cli
  tools/disk_cache.py trim || true
}

# The export served on a unix socket, while another version of it takes over.
serve() {
  local sockets model=$dir/train/export/census
  sockets=$(mktemp -d)
  "$bin/tools/model_server" --port=0 --grpc_socket_path="$sockets/grpc" --model_name=census \
    --model_base_path="$model" >"$dir/logs/model_server.log" 2>&1 &
  server=$!
  trap 'kill "$server" 2>/dev/null || true' EXIT
  # The socket is there once the model is.
  until [[ -S "$sockets/grpc" ]]; do
    kill -0 "$server" 2>/dev/null || { cat "$dir/logs/model_server.log" >&2; exit 1; }
    sleep 0.1
  done
  ask() {
    "$bin/tools/predict" --server="unix:$sockets/grpc" --model=census --signature=predict \
      --json_instances=examples/census/test.json "$@"
  }
  ask
  local newest next
  newest=$(ls "$model" | grep -E '^[0-9]+$' | sort -n | tail -1)
  next=$((newest + 1))
  echo "== A second version ($next) is moved in while ten people ask"
  cp -r "$model/$newest" "$model/tmp-$next"
  mv "$model/tmp-$next" "$model/$next"
  until ask --model_version="$next" >/dev/null 2>&1; do ask >/dev/null; done
  echo "It has taken over; no request failed"
  kill "$server"
  wait "$server" || { echo "$program: the model server must end with 0" >&2; exit 1; }
  trap - EXIT
  rm -rf "$sockets"
}

census() {
  build //examples/census //tools:local_predict //tools:model_server //tools:predict
  local files=()
  if [[ -z "$data" ]]; then
    echo "== People: drawn by the program itself, 16,000 to train and 4,000 to test; --data DIR takes the Census Income files"
  else
    echo "== People: the Census Income files in $data"
    files=("--train-files=$data/adult.data.csv" "--eval-files=$data/adult.test.csv")
  fi
  echo "== Training on 1 ps + 1 chief + 2 workers, evaluating by a process of its own: $max_steps steps, logs in $dir/logs"
  "$bin/tools/launch" --ps=1 --chief --workers=2 --evaluator --log_dir="$dir/logs" -- \
    "$bin/examples/census/census" --train-steps="$max_steps" --save-checkpoints-steps=250 \
    --eval-throttle-secs=1 --capital-gain-scale=0.0001 --verbosity=WARN --job-dir="$dir/train" "${files[@]}"

  echo "== The exported model"
  "$bin/tools/saved_model_cli" show --dir "$dir/train/export/census" --tag serve \
    --signature_def predict

  echo "== Ten people"
  "$bin/tools/local_predict" --model-dir "$dir/train/export/census" \
    --json-instances examples/census/test.json

  echo "== The same ten, asked of a model server; its log is $dir/logs/model_server.log"
  serve
  cat <<END
== Done. What is where, below $dir:
   logs/                  what each task said
   train/                 checkpoints (TensorFlow's format), events of training
   train/eval_census-eval events of evaluations, for TensorBoard
   train/export/census/   the SavedModel
== What to type next:
   $bin/tools/saved_model_cli show --dir $dir/train/export/census --all
   $bin/tools/model_server --rest_api_port=8501 --model_name=census --model_base_path=$dir/train/export/census
   bazel run //tools:inspect_events -- $dir/train/eval_census-eval
   $bin/examples/census/census --train-steps=$max_steps --capital-gain-scale=0.0001 --job-dir=$dir/alone${data:+ ${files[*]}}
   tools/quickstart.sh --mnist
END
}

digits() {
  build //examples/mnist:mnist_train //examples/mnist:mnist_predict
  if [[ -z "$data" ]]; then
    echo "== Digits: drawn by the program itself, 10,000 to train and 1,000 to test; --data DIR takes MNIST's files"
  else
    echo "== Digits: MNIST's files in $data"
  fi
  echo "== Training on 1 ps + 1 master + 2 workers: $max_steps steps, logs in $dir/logs"
  "$bin/tools/launch" --ps=1 --master --workers=2 --log_dir="$dir/logs" -- \
    "$bin/examples/mnist/mnist_train" --max_steps="$max_steps" --checkpoint=250 \
    --log_dir="$dir/train" --model_dir="$dir/export" --data="$data"

  echo "== The exported model"
  "$bin/tools/saved_model_cli" show --dir "$dir/export" --tag_set serve \
    --signature_def serving_default

  echo "== Ten predictions"
  "$bin/examples/mnist/mnist_predict" --model_dir="$dir/export" --data="$data"
  cat <<END
== Done. What is where, below $dir:
   logs/     what each task said
   train/    checkpoints (TensorFlow's format)
   export/   the SavedModel
== What to type next:
   $bin/tools/saved_model_cli show --dir $dir/export --all
   $bin/examples/mnist/mnist_predict --model_dir=$dir/export --count=100${data:+ --data=$data}
   $bin/tools/launch --ps=2 --master --workers=2 -- $bin/examples/mnist/mnist_train --max_steps=$max_steps --log_dir=$dir/more${data:+ --data=$data}
END
}

tools/install_deps.sh
if [[ $mnist == true ]]; then digits; else census; fi
