// SPDX-License-Identifier: Apache-2.0
#include "ops/array/transpose.h"

#include <complex>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// The inverse; the only place that knows which vectors are permutations.
StatusOr<Ints> InversePermutation(const char* name, const Ints& perm) {
  const int64_t n = static_cast<int64_t>(perm.size());
  Ints inverse(perm.size(), -1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t p = perm[static_cast<size_t>(i)];
    if (p < 0 || p >= n) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "[", i, "] must be in [0, ", n, "), got ", p));
    }
    int64_t& place = inverse[static_cast<size_t>(p)];
    if (place != -1) {
      return absl::InvalidArgumentError(absl::StrCat(name, " must have each index once, got ", p,
                                                     " at [", place, "] and at [", i, "]"));
    }
    place = i;
  }
  return inverse;
}

// --- Transpose, ConjugateTranspose ---------------------------------------------------------------

// The transposed shape; the only place that knows which (x, perm) pairs are legal.
StatusOr<PartialShape> TransposedShape(const PartialShape& x, const Ints& perm) {
  if (x.has_rank() && static_cast<int64_t>(perm.size()) != x.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("perm must have one element for each of the ",
                                                   x.rank(), " dimensions, got ", perm.size()));
  }
  MR_RETURN_IF_ERROR(InversePermutation("perm", perm).status());
  Ints dims(perm.size(), -1);
  for (size_t i = 0; x.has_rank() && i < perm.size(); ++i) {
    dims[i] = x.dim(static_cast<int>(perm[i]));
  }
  return PartialShape::Make(dims);
}

Status TransposeShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape perm_shape, c->InputWithRank(1, 1));
  if (const std::optional<Ints> perm = ConstantInts(c, 1)) {
    MR_ASSIGN_OR_RETURN(PartialShape shape, TransposedShape(c->input(0), *perm));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  const int64_t rank = c->input(0).has_rank() ? c->input(0).rank() : perm_shape.dim(0);
  if (rank > Shape::kMaxRank || (perm_shape.dim(0) != -1 && perm_shape.dim(0) != rank)) {
    return absl::InvalidArgumentError(absl::StrCat("perm must have one element for each of the ",
                                                   rank, " dimensions, got ", perm_shape.dim(0)));
  }
  c->set_output(0, rank < 0 ? PartialShape() : PartialShape::UnknownOfRank(static_cast<int>(rank)));
  return absl::OkStatus();
}

template <typename T>
void ConjugateAll(KernelContext* ctx, Tensor* t) {
  T* values = t->mutable_raw<T>().data();
  ctx->ParallelFor(t->num_elements(), 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = std::conj(values[i]);
  });
}

class TransposeKernel : public Kernel {
 public:
  explicit TransposeKernel(bool conjugate = false) : conjugate_(conjugate) {}
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints perm, ctx->IntVectorInput(1, "perm"));
    const Tensor x = ctx->TakeInput(0);
    MR_ASSIGN_OR_RETURN(const PartialShape known, TransposedShape(x.shape(), perm));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    const bool conjugate = conjugate_ && IsComplex(x.dtype());
    // Only dimensions of size 1 change places: the elements stay where they are.
    bool in_order = true;
    int64_t last = -1;
    for (const int64_t p : perm) {
      if (x.dim(static_cast<int>(p)) == 1) continue;
      in_order = in_order && p > last;
      last = p;
    }
    if (in_order && !conjugate) {
      MR_ASSIGN_OR_RETURN(Tensor out, x.Reshaped(shape));
      ctx->set_output(0, std::move(out));
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    const BoxSide dense = DenseSide(x.shape().dims());
    BoxSide from;
    for (const int64_t p : perm) from.strides.push_back(dense.strides[static_cast<size_t>(p)]);
    MR_RETURN_IF_ERROR(CopyBox(ctx, shape.dims(), x, from, out, DenseSide(shape.dims())));
    if (conjugate && x.dtype() == DT_COMPLEX64) ConjugateAll<std::complex<float>>(ctx, out);
    if (conjugate && x.dtype() == DT_COMPLEX128) ConjugateAll<std::complex<double>>(ctx, out);
    return absl::OkStatus();
  }

 private:
  const bool conjugate_;
};
class ConjugateTransposeKernel : public TransposeKernel {
 public:
  ConjugateTransposeKernel() : TransposeKernel(true) {}
};

Status TransposeGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  c->set_input_grad(0, Transpose(scope, c->dense_grad(0), InvertPermutation(scope, c->input(1))));
  return absl::OkStatus();
}
Status ConjugateTransposeGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  c->set_input_grad(
      0, ConjugateTranspose(scope, c->dense_grad(0), InvertPermutation(scope, c->input(1))));
  return absl::OkStatus();
}

OpSpec TransposeSpec(const char* name) {
  return OpSpec(name)
      .Input("x: T")
      .Input("perm: Tperm")
      .Output("y: T")
      .Attr("T: type")
      .Attr("Tperm: {int32, int64} = DT_INT32")
      .Shape(TransposeShape);
}
const OpRegistration kTranspose = TransposeSpec("Transpose").Gradient(TransposeGradient);
const KernelRegistration kTransposeKernel = KernelFor<TransposeKernel>("Transpose");
const OpRegistration kConjugateTranspose =
    TransposeSpec("ConjugateTranspose").Gradient(ConjugateTransposeGradient);
const KernelRegistration kConjugateTransposeKernel =
    KernelFor<ConjugateTransposeKernel>("ConjugateTranspose");

// --- InvertPermutation ---------------------------------------------------------------------------

Status InvertPermutationShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->InputWithRank(0, 1));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class InvertPermutationKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints perm, ctx->IntVectorInput(0, "x"));
    MR_ASSIGN_OR_RETURN(const Ints inverse, InversePermutation("x", perm));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape::Vector(inverse.size())));
    for (size_t i = 0; i < inverse.size(); ++i) {
      if (out->dtype() == DT_INT64) {
        out->mutable_raw<int64_t>()[i] = inverse[i];
      } else {
        out->mutable_raw<int32_t>()[i] = static_cast<int32_t>(inverse[i]);
      }
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kInvertPermutation = OpSpec("InvertPermutation")
                                              .Input("x: T")
                                              .Output("y: T")
                                              .Attr("T: {int32, int64} = DT_INT32")
                                              .Shape(InvertPermutationShape)
                                              .NotDifferentiable();
const KernelRegistration kInvertPermutationKernel =
    KernelFor<InvertPermutationKernel>("InvertPermutation");

}  // namespace
}  // namespace millrace
