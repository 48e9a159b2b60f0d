// SPDX-License-Identifier: Apache-2.0
#include "graph/batch_hint.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

bool IsRowOf(const PartialShape& batch, const Shape& row) {
  if (!batch.has_rank() || batch.rank() != row.rank() + 1 || batch.dim(0) >= 0) return false;
  for (int i = 0; i < row.rank(); ++i) {
    if (batch.dim(i + 1) >= 0 && batch.dim(i + 1) != row.dim(i)) return false;
  }
  return true;
}

}  // namespace

std::string BatchHint(const PartialShape& wanted, const Shape& got) {
  if (!IsRowOf(wanted, got)) return "";
  std::string batch = "[1";
  for (const int64_t dim : got.dims()) absl::StrAppend(&batch, ",", dim);
  return absl::StrCat("; it is one row: did you forget the batch dimension, as in ", batch, "]?");
}

}  // namespace millrace
