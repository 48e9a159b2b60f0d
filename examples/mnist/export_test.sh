#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What mnist_train exports: the text that saved_model_cli shows is the golden one, no task of a
# cluster is named in it, protoc reads it with our messages, and mnist_predict runs it.
# Arguments: mnist_train, mnist_predict, saved_model_cli, the golden text.
set -euo pipefail
train=$1
predict=$2
cli=$3
golden=$4
dir=$TEST_TMPDIR/run

"$train" --max_steps=2 --batch_size=250 --checkpoint=2 --log_dir="$dir/train" --model_dir="$dir/export"
"$cli" show --dir "$dir/export" --all >"$dir/shown.txt"
diff "$golden" "$dir/shown.txt"

protoc=$(command -v protoc || echo /usr/bin/protoc)
"$protoc" --decode=tensorflow.SavedModel -I. proto/saved_model.proto \
  <"$dir/export/saved_model.pb" >"$dir/decoded.txt"
grep -q 'key: "serving_default"' "$dir/decoded.txt"
if grep -n '/job:' "$dir/decoded.txt"; then
  echo "the export names tasks of a cluster" >&2
  exit 1
fi
# Fields that the messages do not know appear as bare numbers.
if grep -nE '^ *[0-9]+( \{|: )' "$dir/decoded.txt"; then
  echo "the export has fields that proto/ does not know" >&2
  exit 1
fi
"$predict" --model_dir="$dir/export" --count=25 | tee "$dir/predicted.txt"
grep -qE '^[0-9]+ of 25 right$' "$dir/predicted.txt"
if "$train" --max_steps=2 --log_dir="$dir/train2" --keep_prob=0 2>"$dir/error.txt"; then exit 1; fi
grep -q -- '--keep_prob: must be in (0, 1\], got 0' "$dir/error.txt"
