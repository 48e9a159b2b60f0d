// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_COPY_BOX_H_
#define MILLRACE_OPS_RULES_COPY_BOX_H_

// CopyBox: copies a box of elements between two tensors of one dtype on the kernel's threads.
//
// Index i of the box is element in_origin + sum i_d * in_strides[d] of `in` and the like of `out`;
// the caller guarantees that all of them are inside. Unimplemented for a dtype without elements.

#include <cstdint>

#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/loops/strided_copy.h"
#include "ops/rules/elements.h"
#include "runtime/kernel.h"

namespace millrace {

struct BoxSide {
  int64_t origin = 0;
  math::StridedBox::Dims strides;
};

// All of a dense tensor of these dimensions.
inline BoxSide DenseSide(absl::Span<const int64_t> dims) { return {0, math::DenseStrides(dims)}; }

inline Status CopyBox(KernelContext* ctx, absl::Span<const int64_t> dims, const Tensor& in,
                      const BoxSide& in_side, Tensor* out, const BoxSide& out_side) {
  const math::StridedBox box = math::MakeStridedBox(dims, in_side.strides, out_side.strides);
  const int64_t rows = box.num_rows();
  if (rows == 0) return absl::OkStatus();
  return VisitElements(in.dtype(), [&]<typename E>() {
    const E* from = ElementsOf<E>(in) + in_side.origin;
    E* to = MutableElementsOf<E>(out) + out_side.origin;
    if (rows == 1 && box.dims.size() == 1) {  // one long row: cut it where threads like
      ctx->ParallelFor(box.dims[0], 0.1 * sizeof(E), [&](int64_t begin, int64_t end) {
        math::StridedBox part = box;
        part.dims[0] = end - begin;
        math::CopyStrided(part, from + begin * box.in_strides[0], to + begin * box.out_strides[0],
                          0, 1);
      });
      return;
    }
    const double cost = 2 + 0.5 * static_cast<double>(box.row_size());
    ctx->ParallelFor(rows, cost, [&box, from, to](int64_t begin, int64_t end) {
      math::CopyStrided(box, from, to, begin, end);
    });
  });
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_COPY_BOX_H_
