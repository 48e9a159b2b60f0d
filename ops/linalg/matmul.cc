// SPDX-License-Identifier: Apache-2.0
// Products of matrices: slices of ops/loops/gemm.h run as arena tasks. Gradients are products
// again.
#include "ops/linalg/matmul.h"

#include <algorithm>

#include "graph/gradient.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/loops/broadcast.h"
#include "ops/loops/gemm.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::FindGemm;
using math::GemmShape;
using math::Operand;

// --- Rules ---------------------------------------------------------------------------------------

// The product of two stacks of matrices [..., m, k] and [..., k, n]; -1 is an unknown size.
struct ProductShape {
  int64_t m, n, k;
};
StatusOr<ProductShape> MatrixProduct(const PartialShape& a, const PartialShape& b, bool transpose_a,
                                     bool transpose_b) {
  const int ra = a.rank() - 2;
  const int rb = b.rank() - 2;
  const int64_t k_a = a.dim(ra + (transpose_a ? 0 : 1));
  const int64_t k_b = b.dim(rb + (transpose_b ? 1 : 0));
  if (k_a != k_b && k_a >= 0 && k_b >= 0) {
    return InvalidArgument("Matrix size-incompatible: In[0]: ", a, ", In[1]: ", b,
                           "; the inner dimensions must be equal, got ", k_a, " and ", k_b);
  }
  return ProductShape{a.dim(ra + (transpose_a ? 1 : 0)), b.dim(rb + (transpose_b ? 0 : 1)),
                      std::max(k_a, k_b)};
}

struct MatMulRule {
  bool transpose_a = false, transpose_b = false;
  static constexpr bool adjoint = false;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "transpose_a", &transpose_a, "transpose_b", &transpose_b);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape a, c->InputWithRank(0, 2, "a"));
    MR_ASSIGN_OR_RETURN(const PartialShape b, c->InputWithRank(1, 2, "b"));
    MR_ASSIGN_OR_RETURN(const ProductShape p, MatrixProduct(a, b, transpose_a, transpose_b));
    return PartialShape::Make({p.m, p.n});
  }
};

// The leading dimensions of a shape of rank >= 2.
StatusOr<PartialShape> BatchDims(const PartialShape& shape) {
  return PartialShape::Make(shape.dims().subspan(0, static_cast<size_t>(shape.rank() - 2)));
}

template <bool kBroadcast>
struct BatchMatMulRule {
  bool transpose_a = false, transpose_b = false;
  static constexpr bool adjoint = true;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "adj_x", &transpose_a, "adj_y", &transpose_b);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(PartialShape x, c->InputWithRankAtLeast(0, 2, "x"));
    MR_ASSIGN_OR_RETURN(PartialShape y, c->InputWithRankAtLeast(1, 2, "y"));
    // Equal batch dimensions mean equal ranks.
    if (!kBroadcast && x.has_rank() && !y.has_rank()) y = PartialShape::UnknownOfRank(x.rank());
    if (!kBroadcast && y.has_rank() && !x.has_rank()) x = PartialShape::UnknownOfRank(y.rank());
    if (!x.has_rank() || !y.has_rank()) return PartialShape();
    MR_ASSIGN_OR_RETURN(const PartialShape bx, BatchDims(x));
    MR_ASSIGN_OR_RETURN(const PartialShape by, BatchDims(y));
    const StatusOr<PartialShape> batch = kBroadcast ? BroadcastShape(bx, by) : bx.MergeWith(by);
    if (!batch.ok()) {
      return InvalidArgument("In[0] and In[1] must have ", kBroadcast ? "compatible" : "equal",
                             " batch dimensions, got ", x, " and ", y);
    }
    MR_ASSIGN_OR_RETURN(const ProductShape p, MatrixProduct(x, y, transpose_a, transpose_b));
    std::vector<int64_t> dims(batch->dims().begin(), batch->dims().end());
    dims.insert(dims.end(), {p.m, p.n});
    return PartialShape::Make(dims);
  }
};

// --- Kernels -------------------------------------------------------------------------------------

// Of MatMul, and of stacks of matrices.
template <typename Rule>
class ProductKernel : public RuledKernel<Rule> {
 protected:
  Status Prepare(KernelConstruction* c) override {
    dtype_ = WithoutRef(c->input_type(0));
    return absl::OkStatus();
  }
  Status Run(KernelContext* ctx) const override {
    const Rule& rule = this->rule();
    const Tensor& x = ctx->input(0);
    const Tensor& y = ctx->input(1);
    const Shape& shape = ctx->output_shape(0);
    const int batch_rank = shape.rank() - 2;
    const int64_t m = shape.dim(batch_rank), n = shape.dim(batch_rank + 1);
    const int64_t k = x.dim(x.rank() - (rule.transpose_a ? 2 : 1));
    if (shape.num_elements() == 0 || k == 0) return ctx->AllocateZeros(0).status();
    MR_ASSIGN_OR_RETURN(Tensor * z, ctx->AllocateOutput(0));
    const auto operand = [](bool turned) {
      if (!turned) return Operand::kPlain;
      return Rule::adjoint ? Operand::kAdjoint : Operand::kTransposed;
    };
    const GemmShape gemm{m, n, k, operand(rule.transpose_a), operand(rule.transpose_b)};
    const int64_t size = static_cast<int64_t>(DTypeSize(dtype_));
    const char* xs = static_cast<const char*>(x.raw_data());
    const char* ys = static_cast<const char*>(y.raw_data());
    char* zs = static_cast<char*>(z->mutable_raw_data());
    if (batch_rank == 0) {
      const math::GemmSlices slices(gemm, dtype_);
      ctx->ParallelFor(slices.count(), slices.cost_ns(),
                       [&](int64_t begin, int64_t end) { slices.RunAll(begin, end, xs, ys, zs); });
      return absl::OkStatus();
    }
    // Which matrix of x and y a product takes, walking the batch as if matrices were elements.
    const Shape batch = shape.Slice(0, batch_rank);
    const Shape x_batch = x.shape().Slice(0, x.rank() - 2);
    const Shape y_batch = y.shape().Slice(0, y.rank() - 2);
    const BroadcastPlan plan(batch.dims(), {x_batch.dims(), y_batch.dims()});
    const int64_t x_step = plan.is_scalar_in_run(0) ? 0 : 1;
    const int64_t y_step = plan.is_scalar_in_run(1) ? 0 : 1;
    const int64_t products = batch.num_elements();
    // Few large products are sliced, many are not.
    const math::GemmSlices slices(gemm, dtype_, products);
    const int64_t count = slices.count();
    ctx->ParallelFor(products * count, slices.cost_ns(), [&](int64_t begin, int64_t end) {
      const int64_t first = begin / count;
      const int64_t last = (end - 1) / count;
      plan.ForEachRun(first, last + 1, [&](const BroadcastPlan::Run& run) {
        for (int64_t i = 0; i < run.size; ++i) {
          const int64_t product = run.out + i;
          const char* a = xs + (run.offset[0] + i * x_step) * m * k * size;
          const char* b = ys + (run.offset[1] + i * y_step) * k * n * size;
          const int64_t slice_begin = product == first ? begin - first * count : 0;
          const int64_t slice_end = product == last ? end - last * count : count;
          for (int64_t slice = slice_begin; slice < slice_end; ++slice) {
            slices.Run(slice, a, b, zs + product * m * n * size);
          }
        }
      });
    });
    return absl::OkStatus();
  }

 private:
  DType dtype_ = DT_INVALID;
};

// --- Gradients -----------------------------------------------------------------------------------

// With c = a b: da = g b^T, db = a^T g (for complex numbers the adjoint instead of the transpose);
// a transposed operand swaps the factors. multiply(x, y, transpose_x, transpose_y)
template <typename Rule, typename Multiply>
std::vector<Output> ProductGradients(GradientContext* c, const Rule& rule, Output a, Output b,
                                     Multiply multiply) {
  const bool ta = rule.transpose_a, tb = rule.transpose_b;
  const Output g = c->dense_grad();
  return {ta ? multiply(b, g, tb, true) : multiply(g, b, false, !tb),
          tb ? multiply(g, a, true, ta) : multiply(a, g, !ta, false)};
}

StatusOr<std::vector<Output>> MatMulGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const MatMulRule rule, c->GetRule<MatMulRule>());
  const Scope& s = c->scope();
  // MatMul has no adjoint: the factors are conjugated first.
  const bool conjugate = IsComplex(c->input(0).dtype());
  const Output a = conjugate ? Conj(s, c->input(0)) : c->input(0);
  const Output b = conjugate ? Conj(s, c->input(1)) : c->input(1);
  return ProductGradients(c, rule, a, b, [&](Output x, Output y, bool tx, bool ty) {
    return MatMul(s, x, y, {.transpose_a = tx, .transpose_b = ty});
  });
}

// The leading dimensions of x in the graph, as an int32 vector.
Output BatchShape(const Scope& s, Output x) {
  return StridedSlice(s, ShapeOf(s, x), Const<int32_t>(s, {0}), Const<int32_t>(s, {-2}),
                      Const<int32_t>(s, {1}));
}

// Do static shapes say that the batch dimensions are equal?
bool SameBatch(const PartialShape& x, const PartialShape& y) {
  if (!x.has_rank() || !y.has_rank() || x.rank() != y.rank()) return false;
  for (int i = 0; i + 2 < x.rank(); ++i) {
    if (x.dim(i) < 0 || x.dim(i) != y.dim(i)) return false;
  }
  return true;
}

template <bool kBroadcast>
StatusOr<std::vector<Output>> BatchMatMulGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const auto rule, c->GetRule<BatchMatMulRule<kBroadcast>>());
  const Scope& s = c->scope();
  const Output x = c->input(0), y = c->input(1);
  std::vector<Output> grads =
      ProductGradients(c, rule, x, y, [&](Output a, Output b, bool adj_a, bool adj_b) {
        const BatchMatMulAttrs attrs = {.adj_x = adj_a, .adj_y = adj_b};
        return kBroadcast ? BatchMatMulV2(s, a, b, attrs) : BatchMatMul(s, a, b, attrs);
      });
  if (kBroadcast && !SameBatch(s.shape(x), s.shape(y))) {
    const auto axes = BroadcastGradientArgs(s, BatchShape(s, x), BatchShape(s, y));
    grads[0] = Reshape(s, Sum(s, grads[0], axes.r0), ShapeOf(s, x));
    grads[1] = Reshape(s, Sum(s, grads[1], axes.r1), ShapeOf(s, y));
  }
  return grads;
}

// --- Definitions ---------------------------------------------------------------------------------

constexpr char kTypes[] = "T: {bfloat16, half, float, double, int32, int64, complex64, complex128}";

template <typename Rule>
KernelSpec ProductKernels() {
  return KernelFor<ProductKernel<Rule>>().TypesWith("T", math::FindGemm);
}

const OpRegistration kMatMul =
    OpSpec("MatMul", "a: T, b: T -> product: T",
           absl::StrCat("transpose_a: bool = false; transpose_b: bool = false; ", kTypes))
        .With(ProductKernels<MatMulRule>())
        .Gradient(MatMulGradient);

template <bool kBroadcast>
OpSpec BatchSpec(absl::string_view op) {
  return OpSpec(op, "x: T, y: T -> output: T",
                absl::StrCat(kTypes, "; adj_x: bool = false; adj_y: bool = false"))
      .With(ProductKernels<BatchMatMulRule<kBroadcast>>())
      .Gradient(BatchMatMulGradient<kBroadcast>);
}

const OpRegistration kBatchMatMul = BatchSpec<false>("BatchMatMul");
const OpRegistration kBatchMatMulV2 = BatchSpec<true>("BatchMatMulV2");

}  // namespace
}  // namespace millrace
