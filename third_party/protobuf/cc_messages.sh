#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cc_messages.sh TOGETHER OUT PROTOC FLAG... -- PROTO...: generates the headers of messages below OUT,
# and their sources as one, TOGETHER.
set -euo pipefail
together=$1
out=$2
shift 2
flags=()
while [ "$1" != -- ]; do
  flags+=("$1")
  shift
done
shift
"${flags[@]}" "--cpp_out=$out" "$@"
number=0
for proto in "$@"; do
  # What generated sources name alike and keep to themselves.
  printf '#define %s\n' "schemas schemas_$number" "file_default_instances file_default_instances_$number"
  cat "$out/${proto%.proto}.pb.cc"
  printf '#undef %s\n' schemas file_default_instances
  rm "$out/${proto%.proto}.pb.cc"
  number=$((number + 1))
done > "$together"
