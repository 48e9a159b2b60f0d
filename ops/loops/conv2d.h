// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_CONV2D_H_
#define MILLRACE_OPS_LOOPS_CONV2D_H_

// Two-dimensional convolution on row-major arrays, channels last:
//
//   output[n, r, c, o] = sum over i, j, k of
//       input[n, r * stride_rows - pad_top + i * dilation_rows, c * ... , k] * filter[i, j, k, o]
//
// and its two gradients. A plan is made once per shape and run by many threads and steps:
//
//   Begin(...) once; RunPart(i, ...) for every part, in any order and on any thread; End(...) once.
//
// Float runs in oneDNN, held to the calling thread, on the arrays as they are (only filters are
// copied into oneDNN's layout); what is too small for it, what it refuses, and double run in
// plain loops.
//
// The parts depend on the shape alone, so results do not depend on the number of threads. The
// gradient of the filter is a sum over pieces of the batch.
//
// Thread-safety: plans are immutable. Failure: dnnl::error (a std::exception) from oneDNN.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/dtype.h"

namespace millrace::math {

struct Conv2DShape {
  int64_t batch = 0;
  int64_t in_rows = 0, in_cols = 0, in_channels = 0;
  int64_t filter_rows = 0, filter_cols = 0;
  int64_t out_rows = 0, out_cols = 0, out_channels = 0;
  int64_t stride_rows = 1, stride_cols = 1;
  int64_t dilation_rows = 1, dilation_cols = 1;
  int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;

  friend bool operator==(const Conv2DShape&, const Conv2DShape&) = default;
};

enum class Conv2DPass {
  kForward,         // a = input, b = filter, result = output
  kInputGradient,   // a = gradient of the output, b = filter, result = gradient of the input
  kFilterGradient,  // a = input, b = gradient of the output, result = gradient of the filter
};

// The arrays of one run. `scratch` has scratch_bytes() bytes, aligned to 64.
struct Conv2DArrays {
  const void* a = nullptr;
  const void* b = nullptr;
  void* result = nullptr;
  char* scratch = nullptr;
};

class Conv2DPlan {
 public:
  virtual ~Conv2DPlan() = default;
  virtual int64_t num_parts() const = 0;
  // About how long a part takes.
  virtual double part_cost_ns() const = 0;
  virtual size_t scratch_bytes() const = 0;
  virtual void Begin(const Conv2DArrays& arrays) const = 0;
  virtual void RunPart(int64_t part, const Conv2DArrays& arrays) const = 0;
  virtual void End(const Conv2DArrays& arrays) const = 0;
};

// For float and double; null for others. Every size is >= 1 and the output fits the input (as
// ops/rules/window.h computes it).
std::unique_ptr<const Conv2DPlan> MakeConv2DPlan(const Conv2DShape& shape, Conv2DPass pass,
                                                 DType dtype);
// The same without oneDNN: an independent reference for tests.
std::unique_ptr<const Conv2DPlan> MakeDirectConv2DPlan(const Conv2DShape& shape, Conv2DPass pass,
                                                       DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_CONV2D_H_
