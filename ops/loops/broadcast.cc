// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/broadcast.h"

#include <algorithm>

namespace millrace {

BroadcastPlan::BroadcastPlan(absl::Span<const int64_t> out_dims,
                             std::initializer_list<absl::Span<const int64_t>> operands)
    : num_operands_(static_cast<int>(operands.size())) {
  for (const int64_t size : out_dims) num_elements_ *= size;
  if (num_elements_ == 0) return;
  // From the innermost dimension outwards; `spans` is the operand's elements inside this dimension.
  std::array<int64_t, kMaxOperands> spans;
  spans.fill(1);
  const size_t rank = out_dims.size();
  for (size_t from_right = 0; from_right < rank; ++from_right) {
    Dim dim;
    dim.size = out_dims[rank - 1 - from_right];
    if (dim.size == 1) continue;
    size_t k = 0;
    for (const absl::Span<const int64_t> operand : operands) {
      const int64_t own =
          from_right < operand.size() ? operand[operand.size() - 1 - from_right] : 1;
      dim.stride[k] = own == 1 ? 0 : spans[k];
      spans[k] *= own;
      ++k;
    }
    if (!dims_.empty()) {
      // Joins with the dimension inside it when every operand goes on where that one ends.
      Dim& inner = dims_.back();
      bool joins = true;
      for (size_t i = 0; i < operands.size(); ++i) {
        joins = joins && (inner.stride[i] == 0 ? dim.stride[i] == 0
                                               : dim.stride[i] == inner.stride[i] * inner.size);
      }
      if (joins) {
        inner.size *= dim.size;
        continue;
      }
    }
    dims_.push_back(dim);
  }
  std::reverse(dims_.begin(), dims_.end());
}

void BroadcastPlan::ForEachRun(int64_t begin, int64_t end,
                               absl::FunctionRef<void(const Run&)> body) const {
  if (begin >= end) return;
  Run run;
  run.out = begin;
  if (dims_.empty()) {
    run.size = 1;
    body(run);
    return;
  }
  const size_t operands = static_cast<size_t>(num_operands_);
  const size_t last = dims_.size() - 1;
  absl::InlinedVector<int64_t, 4> index(dims_.size());
  int64_t rest = begin;
  for (size_t d = dims_.size(); d-- > 0;) {
    index[d] = rest % dims_[d].size;
    rest /= dims_[d].size;
    for (size_t k = 0; k < operands; ++k) run.offset[k] += index[d] * dims_[d].stride[k];
  }
  while (true) {
    run.size = std::min(dims_[last].size - index[last], end - run.out);
    body(run);
    run.out += run.size;
    if (run.out >= end) return;
    // A run that does not reach `end` ends its row: back to the row's start, then carry.
    for (size_t k = 0; k < operands; ++k) run.offset[k] -= index[last] * dims_[last].stride[k];
    index[last] = 0;
    for (size_t d = last; d-- > 0;) {
      for (size_t k = 0; k < operands; ++k) run.offset[k] += dims_[d].stride[k];
      if (++index[d] < dims_[d].size) break;
      for (size_t k = 0; k < operands; ++k) {
        run.offset[k] -= dims_[d].size * dims_[d].stride[k];
      }
      index[d] = 0;
    }
  }
}

}  // namespace millrace
