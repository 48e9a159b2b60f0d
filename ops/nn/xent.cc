// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/xent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "graph/gradient.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/loops/softmax.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/nn/softmax.h"
#include "ops/rules/copy_box.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Rules ---------------------------------------------------------------------------------------

// [batch, classes] of features and labels together.
struct XentRule {
  Status operator()(RuleContext* c) const {
    const PartialShape &features = c->input(0), &labels = c->input(1);
    const StatusOr<PartialShape> both = BroadcastShape(features, labels);
    if (!both.ok()) {
      return InvalidArgument("logits and labels must be broadcastable: logits_size=", features,
                             " labels_size=", labels);
    }
    const PartialShape matrix = both->has_rank() ? *both : PartialShape::UnknownOfRank(2);
    if (matrix.rank() != 2) {
      return InvalidArgument("logits and labels must be matrices or broadcast to a matrix, got ",
                             "shapes ", features, " and ", labels);
    }
    c->set_output(0, {matrix.dim(0)});
    c->set_output(1, matrix);
    return absl::OkStatus();
  }
};

struct SparseXentRule {
  Status operator()(RuleContext* c) const {
    const PartialShape &features = c->input(0), &labels = c->input(1);
    const StatusOr<PartialShape> matrix = c->InputWithRank(0, 2), vector = c->InputWithRank(1, 1);
    if (!matrix.ok()) return InvalidArgument("logits must be 2-D, but got shape ", features);
    if (!vector.ok()) return InvalidArgument("labels must be 1-D, but got shape ", labels);
    if (matrix->dim(1) == 0) {
      return InvalidArgument("Must have at least one class, but got logits shape ", features);
    }
    const StatusOr<PartialShape> batch = vector->MergeWith({matrix->dim(0)});
    if (!batch.ok()) {
      return InvalidArgument("logits and labels must have the same first dimension, got logits ",
                             "shape ", features, " and labels shape ", labels);
    }
    c->set_output(0, *batch);
    c->set_output(1, {batch->dim(0), matrix->dim(1)});
    return absl::OkStatus();
  }
};

// --- Kernels -------------------------------------------------------------------------------------

// Nanoseconds for one element, measured.
constexpr double kElementNs = 3;

// The elements of input i, of rank <= 2, as a matrix of shape `both`; `*copy` holds them where they
// are repeated.
StatusOr<const char*> Matrix(KernelContext* ctx, int i, const Shape& both, Tensor* copy) {
  const Tensor& in = ctx->input(i);
  if (in.shape() == both) return static_cast<const char*>(in.raw_data());
  MR_ASSIGN_OR_RETURN(*copy, ctx->AllocateTemp(in.dtype(), both));
  const int64_t rows = in.rank() < 2 ? 1 : in.dim(0);
  const int64_t columns = in.rank() < 1 ? 1 : in.dim(in.rank() - 1);
  const BoxSide from = {0, {rows == 1 ? 0 : columns, columns == 1 ? 0 : 1}};
  MR_RETURN_IF_ERROR(CopyBox(ctx, both.dims(), in, from, copy, DenseSide(both.dims())));
  return static_cast<const char*>(copy->raw_data());
}

// loop(at, loss, backprop, begin, rows) for slices of rows: `at` is the byte where a slice begins.
// Both outputs are allocated; backprop in the memory of the features, where nobody else has it.
template <typename F>
Status ForRows(KernelContext* ctx, F loop) {
  const int64_t size = static_cast<int64_t>(DTypeSize(ctx->input_dtype(0)));
  const int64_t columns = ctx->output_shape(1).dim(1);
  MR_ASSIGN_OR_RETURN(Tensor * loss, ctx->AllocateOutput(0));
  MR_ASSIGN_OR_RETURN(Tensor * backprop, ctx->ForwardInputOrAllocateOutput({0}, 1));
  char* l = static_cast<char*>(loss->mutable_raw_data());
  char* b = static_cast<char*>(backprop->mutable_raw_data());
  ctx->ParallelFor(loss->num_elements(), kElementNs * static_cast<double>(columns),
                   [&](int64_t begin, int64_t end) {
                     const int64_t at = begin * columns * size;
                     loop(at, l + begin * size, b + at, begin, end - begin);
                   });
  return absl::OkStatus();
}

Status RunXent(KernelContext* ctx, const XentRule&, const math::SoftmaxLoops* loops) {
  const Shape& both = ctx->output_shape(1);
  if (both.num_elements() == 0) {
    MR_RETURN_IF_ERROR(ctx->AllocateZeros(0).status());
    return ctx->AllocateOutput(1).status();
  }
  Tensor x_copy, t_copy;
  MR_ASSIGN_OR_RETURN(const char* x, Matrix(ctx, 0, both, &x_copy));
  MR_ASSIGN_OR_RETURN(const char* t, Matrix(ctx, 1, both, &t_copy));
  return ForRows(ctx, [&](int64_t at, void* loss, void* backprop, int64_t, int64_t rows) {
    loops->cross_entropy(x + at, t + at, loss, backprop, rows, both.dim(1));
  });
}

Status RunSparseXent(KernelContext* ctx, const SparseXentRule&, const math::SoftmaxLoops* loops) {
  const int64_t classes = ctx->output_shape(1).dim(1);
  const IntSpan labels = ctx->input(1).ints();
  for (size_t row = 0; row < labels.size(); ++row) {
    const int64_t label = labels[row];
    if (label >= 0 && label < classes) continue;
    constexpr size_t kMost = 16;
    return InvalidArgument(
        "Received a label value of ", label, " which is outside the valid range of [0, ", classes,
        ").  Label values: ", absl::StrJoin(labels.subspan(0, kMost).ToVector(), " "),
        labels.size() > kMost ? " ..." : "", "; it is in row ", row, " of ", labels.size());
  }
  const char* x = static_cast<const char*>(ctx->input(0).raw_data());
  return ForRows(ctx, [&](int64_t at, void* loss, void* backprop, int64_t begin, int64_t rows) {
    loops->sparse_cross_entropy(x + at, labels.subspan(static_cast<size_t>(begin)), loss, backprop,
                                rows, classes);
  });
}

// --- Gradients -----------------------------------------------------------------------------------

// vector[n] times each row n of matrix[n, c].
Output ScaleRows(const Scope& s, Output vector, Output matrix) {
  return Mul(s, ExpandDims(s, vector, Const<int32_t>(s, -1)), matrix);
}

// What flows through backprop (a second derivative) to the features:
// (g - sum(g * softmax)) * softmax, by rows.
Output ThroughBackprop(const Scope& s, Output g, Output logits) {
  const Output softmax = Softmax(s, logits);
  const Output sum = ReduceSum(s, Mul(s, g, softmax), {-1}, {.keep_dims = true});
  return Mul(s, Sub(s, g, sum), softmax);
}

// Are the classes of both inputs known to be the same, so that a row of features is a whole row?
bool SameClasses(const PartialShape& a, const PartialShape& b) {
  return a.has_rank() && b.has_rank() && a.rank() >= 1 && b.rank() >= 1 &&
         a.dim(a.rank() - 1) >= 0 && a.dim(a.rank() - 1) == b.dim(b.rank() - 1);
}

// The gradient of output i; invalid where none flows.
Output GradientOf(GradientContext* c, int i) {
  return c->has_grad(i) ? c->dense_grad(i) : Output();
}

// From those of loss and backprop.
Output ToFeatures(GradientContext* c, Output loss_grad, Output backprop_grad, Output logits) {
  const Scope& s = c->scope();
  const Output first = loss_grad.valid() ? ScaleRows(s, loss_grad, c->output(1)) : Output();
  if (!backprop_grad.valid()) return first;
  const Output second = ThroughBackprop(s, backprop_grad, logits);
  return first.valid() ? Add(s, first, second) : second;
}

Status XentGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output features = c->input(0), labels = c->input(1);
  const Output g = GradientOf(c, 0), h = GradientOf(c, 1);
  if (!g.valid() && !h.valid()) return absl::OkStatus();
  // Features with one column may stand for many classes.
  const Output logits = SameClasses(s.shape(features), s.shape(labels))
                            ? features
                            : BroadcastTo(s, features, ShapeOf(s, c->output(1)));
  const Output to_features = ToFeatures(c, g, h, logits);
  Output to_labels;
  if (g.valid()) to_labels = Neg(s, ScaleRows(s, g, LogSoftmax(s, logits)));
  if (h.valid()) to_labels = g.valid() ? Sub(s, to_labels, h) : Neg(s, h);
  c->set_input_grads(
      {SumToInput(s, to_features, features, labels), SumToInput(s, to_labels, labels, features)});
  return absl::OkStatus();
}

Status SparseXentGradient(GradientContext* c) {
  c->set_input_grad(0, ToFeatures(c, GradientOf(c, 0), GradientOf(c, 1), c->input(0)));
  return absl::OkStatus();
}

// --- Definitions ---------------------------------------------------------------------------------

const OpRegistration kXent =
    OpSpec("SoftmaxCrossEntropyWithLogits", "features: T, labels: T -> loss: T, backprop: T",
           "T: {half, bfloat16, float, double}")
        .With(RuledLoopKernelFor<XentRule>(math::FindSoftmax, RunXent))
        .Gradient(XentGradient);

const OpRegistration kSparseXent =
    OpSpec("SparseSoftmaxCrossEntropyWithLogits",
           "features: T, labels: Tlabels -> loss: T, backprop: T",
           "T: {half, bfloat16, float, double}; Tlabels: {int32, int64} = DT_INT64")
        .With(RuledLoopKernelFor<SparseXentRule>(math::FindSoftmax, RunSparseXent))
        .Gradient(SparseXentGradient);

}  // namespace
}  // namespace millrace
