// SPDX-License-Identifier: Apache-2.0
// Products of matrices: slices of ops/loops/gemm.h run as arena tasks. Gradients are products
// again.
#include "ops/linalg/matmul.h"

#include <algorithm>
#include <cstring>

#include "graph/gradient.h"
#include "graph/shape_inference.h"
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

constexpr char kTypes[] = "T: {bfloat16, half, float, double, int32, int64, complex64, complex128}";

// The shape of the product of two matrices of shapes a and b. The only place that knows which pairs
// are legal; -1 is an unknown size.
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
    return absl::InvalidArgumentError(
        absl::StrCat("Matrix size-incompatible: In[0]: ", a.ToString(), ", In[1]: ", b.ToString(),
                     "; the inner dimensions must be equal, got ", k_a, " and ", k_b));
  }
  return ProductShape{a.dim(ra + (transpose_a ? 1 : 0)), b.dim(rb + (transpose_b ? 0 : 1)),
                      std::max(k_a, k_b)};
}

Operand ToOperand(bool transposed, bool adjoint) {
  if (adjoint) return Operand::kAdjoint;
  return transposed ? Operand::kTransposed : Operand::kPlain;
}

// --- MatMul --------------------------------------------------------------------------------------

Status CheckMatrix(const Shape& shape, const char* name) {
  if (shape.is_matrix()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be a matrix, got shape ", shape.ToString()));
}

class MatMulKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(transpose_a_, c->GetAttr<bool>("transpose_a"));
    MR_ASSIGN_OR_RETURN(transpose_b_, c->GetAttr<bool>("transpose_b"));
    dtype_ = WithoutRef(c->input_type(0));
    if (FindGemm(dtype_) == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype_)));
    }
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& a = ctx->input(0);
    const Tensor& b = ctx->input(1);
    MR_RETURN_IF_ERROR(CheckMatrix(a.shape(), "a"));
    MR_RETURN_IF_ERROR(CheckMatrix(b.shape(), "b"));
    MR_ASSIGN_OR_RETURN(const ProductShape p,
                        MatrixProduct(a.shape(), b.shape(), transpose_a_, transpose_b_));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({p.m, p.n}));
    MR_ASSIGN_OR_RETURN(Tensor * c, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    if (p.k == 0) {
      const absl::Span<char> bytes = c->mutable_bytes();
      std::memset(bytes.data(), 0, bytes.size());
      return absl::OkStatus();
    }
    const GemmShape gemm{p.m, p.n, p.k, ToOperand(transpose_a_, false),
                         ToOperand(transpose_b_, false)};
    const void* as = a.raw_data();
    const void* bs = b.raw_data();
    void* cs = c->mutable_raw_data();
    const math::GemmSlices slices(gemm, dtype_);
    ctx->ParallelFor(slices.count(), slices.cost_ns(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) slices.Run(i, as, bs, cs);
    });
    return absl::OkStatus();
  }

 private:
  bool transpose_a_ = false;
  bool transpose_b_ = false;
  DType dtype_ = DT_INVALID;
};

Status MatMulShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool transpose_a, c->GetAttr<bool>("transpose_a"));
  MR_ASSIGN_OR_RETURN(const bool transpose_b, c->GetAttr<bool>("transpose_b"));
  MR_ASSIGN_OR_RETURN(const PartialShape a, c->InputWithRank(0, 2));
  MR_ASSIGN_OR_RETURN(const PartialShape b, c->InputWithRank(1, 2));
  MR_ASSIGN_OR_RETURN(const ProductShape p, MatrixProduct(a, b, transpose_a, transpose_b));
  c->set_output(0, {p.m, p.n});
  return absl::OkStatus();
}

// With c = a b: da = g b^T, db = a^T g (for complex numbers the adjoint instead of the transpose);
// a transposed operand swaps the factors. multiply(x, y, transpose_x, transpose_y)
template <typename Multiply>
void ProductGradients(GradientContext* c, Output a, Output b, bool transpose_a, bool transpose_b,
                      Multiply multiply, Output* da, Output* db) {
  const Output g = c->dense_grad();
  *da = transpose_a ? multiply(b, g, transpose_b, true) : multiply(g, b, false, !transpose_b);
  *db = transpose_b ? multiply(g, a, true, transpose_a) : multiply(a, g, !transpose_a, false);
}

Status MatMulGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const bool transpose_a, c->GetAttr<bool>("transpose_a"));
  MR_ASSIGN_OR_RETURN(const bool transpose_b, c->GetAttr<bool>("transpose_b"));
  const Scope& s = c->scope();
  // MatMul has no adjoint: the factors are conjugated first.
  const bool conjugate = IsComplex(c->input(0).dtype());
  const Output a = conjugate ? Conj(s, c->input(0)) : c->input(0);
  const Output b = conjugate ? Conj(s, c->input(1)) : c->input(1);
  Output da, db;
  ProductGradients(
      c, a, b, transpose_a, transpose_b,
      [&](Output x, Output y, bool tx, bool ty) {
        return MatMul(s, x, y, {.transpose_a = tx, .transpose_b = ty});
      },
      &da, &db);
  c->set_input_grad(0, da);
  c->set_input_grad(1, db);
  return absl::OkStatus();
}

KernelSpec ForProductTypes(KernelSpec spec) {
  return spec.Types("T", {DT_BFLOAT16, DT_HALF, DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64,
                          DT_COMPLEX64, DT_COMPLEX128});
}

const OpRegistration kMatMul = OpSpec("MatMul")
                                   .Input("a: T")
                                   .Input("b: T")
                                   .Output("product: T")
                                   .Attr("transpose_a: bool = false")
                                   .Attr("transpose_b: bool = false")
                                   .Attr(kTypes)
                                   .Shape(MatMulShape)
                                   .Gradient(MatMulGradient);
const KernelRegistration kMatMulKernel = ForProductTypes(KernelFor<MatMulKernel>("MatMul"));

// --- BatchMatMul, BatchMatMulV2 ------------------------------------------------------------------

// The leading dimensions of a shape of rank >= 2.
StatusOr<PartialShape> BatchDims(const PartialShape& shape) {
  return PartialShape::Make(shape.dims().subspan(0, static_cast<size_t>(shape.rank() - 2)));
}

// The leading dimensions of the result. The only place that knows which pairs are legal.
StatusOr<PartialShape> BatchOf(const PartialShape& x, const PartialShape& y, bool broadcast) {
  MR_ASSIGN_OR_RETURN(const PartialShape bx, BatchDims(x));
  MR_ASSIGN_OR_RETURN(const PartialShape by, BatchDims(y));
  StatusOr<PartialShape> batch = broadcast ? BroadcastShape(bx, by) : bx.MergeWith(by);
  if (batch.ok()) return batch;
  return absl::InvalidArgumentError(
      absl::StrCat("In[0] and In[1] must have ", broadcast ? "compatible" : "equal",
                   " batch dimensions, got ", x.ToString(), " and ", y.ToString()));
}

StatusOr<PartialShape> BatchProduct(const PartialShape& batch, const ProductShape& p) {
  std::vector<int64_t> dims(batch.dims().begin(), batch.dims().end());
  dims.push_back(p.m);
  dims.push_back(p.n);
  return PartialShape::Make(dims);
}

Status CheckRankAtLeastTwo(const Shape& shape, const char* name) {
  if (shape.rank() >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have rank at least 2, got shape ", shape.ToString()));
}

template <bool kBroadcast>
class BatchMatMulKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(adj_x_, c->GetAttr<bool>("adj_x"));
    MR_ASSIGN_OR_RETURN(adj_y_, c->GetAttr<bool>("adj_y"));
    dtype_ = WithoutRef(c->input_type(0));
    if (FindGemm(dtype_) == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype_)));
    }
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    const Tensor& y = ctx->input(1);
    MR_RETURN_IF_ERROR(CheckRankAtLeastTwo(x.shape(), "x"));
    MR_RETURN_IF_ERROR(CheckRankAtLeastTwo(y.shape(), "y"));
    MR_ASSIGN_OR_RETURN(const PartialShape batch_dims, BatchOf(x.shape(), y.shape(), kBroadcast));
    MR_ASSIGN_OR_RETURN(const ProductShape p, MatrixProduct(x.shape(), y.shape(), adj_x_, adj_y_));
    MR_ASSIGN_OR_RETURN(const PartialShape result, BatchProduct(batch_dims, p));
    MR_ASSIGN_OR_RETURN(const Shape shape, result.ToShape());
    MR_ASSIGN_OR_RETURN(const Shape batch, batch_dims.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * z, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    if (p.k == 0) {
      const absl::Span<char> bytes = z->mutable_bytes();
      std::memset(bytes.data(), 0, bytes.size());
      return absl::OkStatus();
    }
    const GemmShape gemm{p.m, p.n, p.k, ToOperand(adj_x_, adj_x_), ToOperand(adj_y_, adj_y_)};
    const int64_t size = static_cast<int64_t>(DTypeSize(dtype_));
    const char* xs = static_cast<const char*>(x.raw_data());
    const char* ys = static_cast<const char*>(y.raw_data());
    char* zs = static_cast<char*>(z->mutable_raw_data());
    const Shape x_batch = x.shape().Slice(0, x.rank() - 2);
    const Shape y_batch = y.shape().Slice(0, y.rank() - 2);
    // Which matrix of x and y a product takes, walking the batch as if matrices were elements.
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
          const char* a = xs + (run.offset[0] + i * x_step) * p.m * p.k * size;
          const char* b = ys + (run.offset[1] + i * y_step) * p.k * p.n * size;
          const int64_t slice_begin = product == first ? begin - first * count : 0;
          const int64_t slice_end = product == last ? end - last * count : count;
          for (int64_t slice = slice_begin; slice < slice_end; ++slice) {
            slices.Run(slice, a, b, zs + product * p.m * p.n * size);
          }
        }
      });
    });
    return absl::OkStatus();
  }

 private:
  bool adj_x_ = false;
  bool adj_y_ = false;
  DType dtype_ = DT_INVALID;
};

template <bool kBroadcast>
Status BatchMatMulShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool adj_x, c->GetAttr<bool>("adj_x"));
  MR_ASSIGN_OR_RETURN(const bool adj_y, c->GetAttr<bool>("adj_y"));
  MR_ASSIGN_OR_RETURN(PartialShape x, c->InputWithRankAtLeast(0, 2));
  MR_ASSIGN_OR_RETURN(PartialShape y, c->InputWithRankAtLeast(1, 2));
  // Equal batch dimensions mean equal ranks.
  if (!kBroadcast && x.has_rank() && !y.has_rank()) y = PartialShape::UnknownOfRank(x.rank());
  if (!kBroadcast && y.has_rank() && !x.has_rank()) x = PartialShape::UnknownOfRank(y.rank());
  if (!x.has_rank() || !y.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const PartialShape batch, BatchOf(x, y, kBroadcast));
  MR_ASSIGN_OR_RETURN(const ProductShape p, MatrixProduct(x, y, adj_x, adj_y));
  MR_ASSIGN_OR_RETURN(PartialShape shape, BatchProduct(batch, p));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
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
Status BatchMatMulGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const bool adj_x, c->GetAttr<bool>("adj_x"));
  MR_ASSIGN_OR_RETURN(const bool adj_y, c->GetAttr<bool>("adj_y"));
  const Scope& s = c->scope();
  Output dx, dy;
  ProductGradients(
      c, c->input(0), c->input(1), adj_x, adj_y,
      [&](Output x, Output y, bool ax, bool ay) {
        const BatchMatMulAttrs attrs = {.adj_x = ax, .adj_y = ay};
        return kBroadcast ? BatchMatMulV2(s, x, y, attrs) : BatchMatMul(s, x, y, attrs);
      },
      &dx, &dy);
  if (kBroadcast && !SameBatch(s.shape(c->input(0)), s.shape(c->input(1)))) {
    const Output x_batch = BatchShape(s, c->input(0));
    const Output y_batch = BatchShape(s, c->input(1));
    const BroadcastGradientArgsOutputs axes = BroadcastGradientArgs(s, x_batch, y_batch);
    const auto back = [&](Output grad, Output axis, Output input) {
      return Reshape(s, Sum(s, grad, axis), ShapeOf(s, input));
    };
    dx = back(dx, axes.r0, c->input(0));
    dy = back(dy, axes.r1, c->input(1));
  }
  c->set_input_grad(0, dx);
  c->set_input_grad(1, dy);
  return absl::OkStatus();
}

template <bool kBroadcast>
OpSpec BatchSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("x: T")
      .Input("y: T")
      .Output("output: T")
      .Attr(kTypes)
      .Attr("adj_x: bool = false")
      .Attr("adj_y: bool = false")
      .Shape(BatchMatMulShape<kBroadcast>)
      .Gradient(BatchMatMulGradient<kBroadcast>);
}

const OpRegistration kBatchMatMul = BatchSpec<false>("BatchMatMul");
const KernelRegistration kBatchMatMulKernel =
    ForProductTypes(KernelFor<BatchMatMulKernel<false>>("BatchMatMul"));
const OpRegistration kBatchMatMulV2 = BatchSpec<true>("BatchMatMulV2");
const KernelRegistration kBatchMatMulV2Kernel =
    ForProductTypes(KernelFor<BatchMatMulKernel<true>>("BatchMatMulV2"));

}  // namespace
}  // namespace millrace
