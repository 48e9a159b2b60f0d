#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The program on a small click log: a table, the same JSON twice, and wrong flags.
#
# covers: training: examples_to_auc: what many workers need for one worker's AUC, the same twice
set -eu
program=$1

small() {
  "$program" --problem=clicks --rows=160 --train_examples=4000 --held_out=300 --batch=16 \
    --budget=1024 --evaluations=16 --smooth=4 --most=2 --seeds=2 --workers=2,3 "$@"
}

table=$(small --updates=asynchronous,local)
for line in 'clicks: one worker has an AUC of ' '| update | 2 | 3 |' '| asynchronous | ' '| local | '; do
  case $table in
    *"$line"*) ;;
    *) echo "no line '$line' in: $table" >&2; exit 1 ;;
  esac
done

first=$(small --json)
second=$(small --json)
[ -n "$first" ] && [ "$first" = "$second" ] || { echo "not the same: $first / $second" >&2; exit 1; }
python3 -c 'import json, sys; table = json.loads(sys.argv[1]); assert len(table["cells"]) == 14' \
  "$first"

if error=$(small --updates=best 2>&1); then
  echo "--updates=best must be refused" >&2
  exit 1
fi
case $error in
  *"got 'best'"*) ;;
  *) echo "not the error of --updates: $error" >&2; exit 1 ;;
esac
