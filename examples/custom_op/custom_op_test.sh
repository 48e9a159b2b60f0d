#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The model learns, with the op linked into the program and, number for number the same, with the
# op loaded from a shared library. Arguments: the program, the program without the op, the library.

# covers: graphs: a user's op trains with the same numbers whether it is linked or loaded

set -euo pipefail
linked=$1
bare=$2
library=$3

for form in --noapproximate --approximate; do
  want=$("$linked" "$form")
  got=$("$bare" --op_library="$library" "$form")
  echo "$form: $want"
  [[ "$got" == "$want" ]] || { echo "loaded from a library, got: $got"; exit 1; }
  python3 - "$want" <<'PY'
import re, sys
losses = [float(x) for x in re.findall(r"loss: ([0-9.]+)", sys.argv[1])]
assert len(losses) == 5 and losses[0] > 0.2 and losses[-1] < 0.002, losses
PY
done
[[ $("$linked" --noapproximate) != $("$linked" --approximate) ]]

# Without the library the program says what is missing.
if message=$("$bare" 2>&1); then echo "must fail without the op"; exit 1; fi
grep -q "Op type not registered 'Gelu'" <<<"$message" || { echo "$message"; exit 1; }
# An op that is linked is not loaded once more.
if message=$("$linked" --op_library="$library" 2>&1); then echo "must refuse it twice"; exit 1; fi
grep -q "op kinds must be new to the program, got 'Gelu', which it has" <<<"$message" ||
  { echo "$message"; exit 1; }
