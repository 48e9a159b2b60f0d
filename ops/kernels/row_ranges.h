// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_ROW_RANGES_H_
#define MILLRACE_OPS_KERNELS_ROW_RANGES_H_

// Rows that are added into rows of an output, in any order, on several threads.
//
// Every thread walks over all ids and takes those of its own range of output rows, so that each sum
// is made in the order of the ids, however many threads there are.

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "runtime/kernel.h"

namespace millrace {

// body(begin, end) for ranges of the `rows` output rows, for `num_ids` rows of `width` elements
// that are added.
inline void ParallelRowRanges(const KernelContext* ctx, int64_t rows, int64_t width,
                              int64_t num_ids,
                              absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  constexpr double kWorthAThread = 50e3;  // ns
  const double work = (2 + 0.3 * static_cast<double>(width)) * static_cast<double>(num_ids);
  const int64_t parts = std::clamp<int64_t>(static_cast<int64_t>(work / kWorthAThread), 1,
                                            width < 8 ? 1 : ctx->num_threads());
  ctx->ParallelFor(parts, work / static_cast<double>(parts), [&](int64_t first, int64_t last) {
    // In two factors: rows may be as many as an int64 just holds.
    const auto cut = [&](int64_t part) {
      return rows / parts * part + std::min(part, rows % parts);
    };
    body(cut(first), cut(last));
  });
}

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_ROW_RANGES_H_
