// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_RECURRENT_H_
#define MILLRACE_OPS_KERNELS_RECURRENT_H_

// What the kernels of recurrent cells share: operands as floats, products, rows of two matrices
// next to each other.
//
// Thread-safety: within one run of a kernel.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/loops/gemm.h"
#include "runtime/kernel.h"

namespace millrace {

// Inputs and outputs of type float or half, as floats: halves are converted.
class FloatOperands {
 public:
  explicit FloatOperands(KernelContext* ctx) : ctx_(ctx) {}

  StatusOr<const float*> Input(int i) {
    const Tensor& input = ctx_->input(i);
    if (input.dtype() == DT_FLOAT) return input.raw<float>().data();
    MR_ASSIGN_OR_RETURN(Tensor wide, ctx_->AllocateTemp(DT_FLOAT, input.shape()));
    const absl::Span<const Half> from = input.raw<Half>();
    std::transform(from.begin(), from.end(), wide.mutable_raw<float>().begin(),
                   [](Half h) { return ToFloat(h); });
    kept_.push_back(std::move(wide));
    return kept_.back().raw<float>().data();
  }
  // Output i of the shape that the rule gives; written by Finish.
  StatusOr<float*> Output(int i) {
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx_->AllocateOutput(i));
    if (output->dtype() == DT_FLOAT) return output->mutable_raw<float>().data();
    MR_ASSIGN_OR_RETURN(Tensor wide, ctx_->AllocateTemp(DT_FLOAT, output->shape()));
    wide_outputs_.push_back({i, wide});
    return wide.mutable_raw<float>().data();
  }
  StatusOr<float*> Scratch(int64_t rows, int64_t columns) {
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({rows, columns}));
    MR_ASSIGN_OR_RETURN(Tensor scratch, ctx_->AllocateTemp(DT_FLOAT, shape));
    kept_.push_back(std::move(scratch));
    return kept_.back().mutable_raw<float>().data();
  }
  void Finish() {
    for (const auto& [i, wide] : wide_outputs_) {
      const absl::Span<const float> from = wide.raw<float>();
      std::transform(from.begin(), from.end(), ctx_->mutable_output(i)->mutable_raw<Half>().begin(),
                     [](float f) { return ToHalf(f); });
    }
  }

  // c = op(a) * op(b)
  void Product(const math::GemmShape& shape, const float* a, const float* b, float* c) const {
    if (shape.m == 0 || shape.n == 0) return;
    const math::GemmSlices slices(shape, DT_FLOAT);
    ctx_->ParallelFor(slices.count(), slices.cost_ns(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) slices.Run(i, a, b, c);
    });
  }

  // body(row) for each row of a step, which costs about ns_per_cell for each cell.
  template <typename Body>
  void ForEachRow(int64_t rows, int64_t cells, double ns_per_cell, Body body) const {
    ctx_->ParallelFor(rows, 20 + ns_per_cell * static_cast<double>(cells),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t row = begin; row < end; ++row) body(row);
                      });
  }

  // out[columns, rows] = a[rows, columns], turned; by blocks that stay in the nearest cache.
  static void Transpose(const float* a, int64_t rows, int64_t columns, float* out) {
    constexpr int64_t kBlock = 16;
    for (int64_t row = 0; row < rows; row += kBlock) {
      const int64_t row_end = std::min(rows, row + kBlock);
      for (int64_t column = 0; column < columns; ++column) {
        for (int64_t r = row; r < row_end; ++r) out[column * rows + r] = a[r * columns + column];
      }
    }
  }

  // out[rows, left + right] = a[rows, left] and b[rows, right] next to each other.
  static void Beside(int64_t rows, const float* a, int64_t left, const float* b, int64_t right,
                     float* out) {
    for (int64_t row = 0; row < rows; ++row) {
      out = std::copy(a + row * left, a + (row + 1) * left, out);
      out = std::copy(b + row * right, b + (row + 1) * right, out);
    }
  }

 private:
  struct WideOutput {
    int i;
    Tensor wide;
  };
  KernelContext* const ctx_;
  std::vector<Tensor> kept_;
  std::vector<WideOutput> wide_outputs_;
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_RECURRENT_H_
