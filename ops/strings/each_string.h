// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_EACH_STRING_H_
#define MILLRACE_OPS_STRINGS_EACH_STRING_H_

// EachString: the loop of kernels that make one element of each string of input 0.
//
// Requires output 0 of T, shaped as input 0 (UnchangedShapeRule). Parallel; the failure told is
// that of the first string, whatever the number of threads.

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/kernel.h"

namespace millrace {

// make(const std::string& text, T* out); `cost_ns` is about what one costs.
template <typename T, typename Make>
Status EachString(KernelContext* ctx, double cost_ns, Make make) {
  const absl::Span<const std::string> in = ctx->input(0).raw<std::string>();
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  const absl::Span<T> out = output->mutable_raw<T>();
  ctx->ParallelFor(static_cast<int64_t>(in.size()), cost_ns, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      make(in[i], &out[i]);
    }
  });
  return absl::OkStatus();
}

// The same with a `make` that returns whether it could. The error is `failure(text)` for the first
// string for which it could not.
template <typename T, typename Make, typename Failure>
Status EachString(KernelContext* ctx, double cost_ns, Make make, Failure failure) {
  const absl::Span<const std::string> in = ctx->input(0).raw<std::string>();
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  const absl::Span<T> out = output->mutable_raw<T>();
  // Relaxed: it is only a number; what is written is ordered by the loop.
  std::atomic<size_t> first_bad{in.size()};
  ctx->ParallelFor(static_cast<int64_t>(in.size()), cost_ns, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (make(in[i], &out[i])) continue;
      size_t known = first_bad.load(std::memory_order_relaxed);
      while (i < known && !first_bad.compare_exchange_weak(known, i, std::memory_order_relaxed)) {
      }
      return;
    }
  });
  const size_t bad = first_bad.load(std::memory_order_relaxed);
  return bad == in.size() ? absl::OkStatus() : failure(in[bad]);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_EACH_STRING_H_
