// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_STRIDED_COPY_H_
#define MILLRACE_OPS_LOOPS_STRIDED_COPY_H_

// Strided copies: out[sum i_d * out_stride_d] = in[sum i_d * in_stride_d] for every index of a box.
//
// This one loop is a transpose, a slice with steps, a reversal (negative strides), a
// repetition (stride 0 in the input), a padding (the output is larger than the box). A
// StridedBox is the simplest form of the problem: no dimension of size 1, dimensions that
// are contiguous on both sides made one. Its rows (all dimensions but those of the inner loop) may
// be copied by several threads.
//
// Strides count elements. The caller guarantees that every index is inside both buffers. No
// two indices of the box may meet in the output.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace millrace::math {

struct StridedBox {
  using Dims = absl::InlinedVector<int64_t, 8>;
  // Outermost first; the inner loop runs over the last one (over the last two when `transposes`).
  Dims dims, in_strides, out_strides;
  // Of the last two dimensions one is contiguous in the input, the other one in the output.
  bool transposes = false;

  // Elements in all.
  int64_t size() const;
  // Elements of one row of the inner loop, and how many rows there are.
  int64_t row_size() const;
  int64_t num_rows() const;
};

// All three of one length. A dimension of 0 makes a box without elements.
StridedBox MakeStridedBox(absl::Span<const int64_t> dims, absl::Span<const int64_t> in_strides,
                          absl::Span<const int64_t> out_strides);

// Strides of a dense row-major array of these dimensions.
StridedBox::Dims DenseStrides(absl::Span<const int64_t> dims);

// Copies rows [begin, end) of the box. `in` and `out` point at the element of index 0.
// Instantiated for elements of 1, 2, 4, 8 and 16 bytes, strings, handles and variants
// (ops/rules/elements.h).
template <typename E>
void CopyStrided(const StridedBox& box, const E* in, E* out, int64_t begin, int64_t end);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_STRIDED_COPY_H_
