// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_INDEX_TYPE_H_
#define MILLRACE_OPS_RULES_INDEX_TYPE_H_

// Indices are int32 or int64: one kernel for both, that asks once in a run.
//
//   return VisitIndexType(indices.dtype(), [&]<typename Index>() {
//     const absl::Span<const Index> values = indices.raw<Index>();
//     ...
//   });
//
// Pure; requires DT_INT32 or DT_INT64 (what the op's attrs allow).

#include <cstdint>

#include "core/dtype.h"

namespace millrace {

template <typename Visitor>
auto VisitIndexType(DType dtype, Visitor&& visit) {
  return dtype == DT_INT32 ? visit.template operator()<int32_t>()
                           : visit.template operator()<int64_t>();
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_INDEX_TYPE_H_
