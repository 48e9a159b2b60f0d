// SPDX-License-Identifier: Apache-2.0
#include "ops/array/transpose.h"

#include <complex>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/per_dimension.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// InvalidArgument unless what is known of the vector may be part of a permutation.
Status CheckPermutation(const char* name, const PartialInts& perm) {
  if (!perm.has_size()) return absl::OkStatus();
  std::vector<int> places(static_cast<size_t>(perm.size()), -1);
  for (int i = 0; i < perm.size(); ++i) {
    const std::optional<int64_t> p = perm.at(i);
    if (!p) continue;
    if (*p < 0 || *p >= perm.size()) {
      return InvalidArgument(name, "[", i, "] must be in [0, ", perm.size(), "), got ", *p);
    }
    int& place = places[static_cast<size_t>(*p)];
    if (place != -1) {
      return InvalidArgument(name, " must have each index once, got ", *p, " at [", place,
                             "] and at [", i, "]");
    }
    place = i;
  }
  return absl::OkStatus();
}

// --- Transpose, ConjugateTranspose ---------------------------------------------------------------

struct TransposeRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts perm, c->IntVector(1, "perm"));
    MR_ASSIGN_OR_RETURN(const PartialShape x, WithLength(c->input(0), perm, "perm"));
    MR_RETURN_IF_ERROR(CheckPermutation("perm", perm));
    if (!x.has_rank()) return x;
    Ints dims;
    for (int d = 0; d < x.rank(); ++d) {
      const std::optional<int64_t> from = perm.at(d);
      dims.push_back(from ? x.dim(static_cast<int>(*from)) : -1);
    }
    return PartialShape::Make(dims);
  }
};

template <typename T>
void ConjugateAll(KernelContext* ctx, Tensor* t) {
  T* values = t->mutable_raw<T>().data();
  ctx->ParallelFor(t->num_elements(), 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = std::conj(values[i]);
  });
}

template <bool kConjugate>
Status RunTranspose(KernelContext* ctx, const TransposeRule&) {
  const Tensor& x = ctx->input(0);
  const Shape& shape = ctx->output_shape(0);
  const IntSpan perm = ctx->input(1).ints();
  const bool conjugate = kConjugate && IsComplex(x.dtype());
  // Only dimensions of size 1 change places: the elements stay where they are.
  bool in_order = true;
  int64_t last = -1;
  for (const int64_t p : perm) {
    if (x.dim(static_cast<int>(p)) == 1) continue;
    in_order = in_order && p > last;
    last = p;
  }
  if (in_order && !conjugate) return ctx->PassInput(0);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const BoxSide dense = DenseSide(x.shape().dims());
  BoxSide from;
  for (const int64_t p : perm) from.strides.push_back(dense.strides[static_cast<size_t>(p)]);
  MR_RETURN_IF_ERROR(CopyBox(ctx, shape.dims(), x, from, out, DenseSide(shape.dims())));
  if (conjugate && x.dtype() == DT_COMPLEX64) ConjugateAll<std::complex<float>>(ctx, out);
  if (conjugate && x.dtype() == DT_COMPLEX128) ConjugateAll<std::complex<double>>(ctx, out);
  return absl::OkStatus();
}

template <bool kConjugate>
Output TransposeGradient(GradientContext* c) {
  const Output back = InvertPermutation(c->scope(), c->input(1));
  return kConjugate ? ConjugateTranspose(c->scope(), c->dense_grad(), back)
                    : Transpose(c->scope(), c->dense_grad(), back);
}

template <bool kConjugate>
OpSpec TransposeSpec(absl::string_view op) {
  return OpSpec(op, "x: T, perm: Tperm -> y: T", "T: type; Tperm: {int32, int64} = DT_INT32")
      .With(RuledKernelFor<TransposeRule>(RunTranspose<kConjugate>))
      .Gradient(TransposeGradient<kConjugate>);
}
const OpRegistration kTranspose = TransposeSpec<false>("Transpose");
const OpRegistration kConjugateTranspose = TransposeSpec<true>("ConjugateTranspose");

// --- InvertPermutation ---------------------------------------------------------------------------

struct InvertPermutationRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts x, c->IntVector(0, "x"));
    MR_RETURN_IF_ERROR(CheckPermutation("x", x));
    return c->InputWithRank(0, 1);
  }
};

template <typename T>
Status RunInvertPermutation(KernelContext* ctx, const InvertPermutationRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const absl::Span<const T> x = ctx->input(0).raw<T>();
  const absl::Span<T> y = out->mutable_raw<T>();
  for (size_t i = 0; i < x.size(); ++i) y[static_cast<size_t>(x[i])] = static_cast<T>(i);
  return absl::OkStatus();
}

const OpRegistration kInvertPermutation =
    OpSpec("InvertPermutation", "x: T -> y: T", "T: {int32, int64} = DT_INT32")
        .With(RuledKernelsFor<InvertPermutationRule, int32_t, int64_t>(
            "T", []<typename T>() { return &RunInvertPermutation<T>; }, KernelCost::kCheap))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
